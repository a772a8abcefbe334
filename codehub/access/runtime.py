"""The runtime's commands, files, ports and logs, as the access part reaches them."""

import asyncio
from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.database import installation
from codehub.runtimes.command_runtime import CommandRuntime
from codehub.runtimes.files.client import FileRuntime
from codehub.runtimes.port_runtime import PortRuntime
from codehub.runtimes.process.commands import ProcessCommands
from codehub.runtimes.process.files import ProcessFiles
from codehub.runtimes.process.ports import ProcessPorts
from codehub.runtimes.recorded_commands import DIRECTORY
from codehub.settings import Settings

_POLL_SECONDS: Final = 0.2


async def make_commands(settings: Settings, engine: AsyncEngine) -> CommandRuntime:
    root = settings.data_dir.absolute() / DIRECTORY
    if settings.runtime == "process":
        return ProcessCommands(root)
    from codehub.runtimes.docker.commands import DockerCommands  # loaded where Docker is used

    # In a new installation, the first coordinator creates the id: in another process.
    while (installation_id := await installation.find_id(engine)) is None:  # noqa: ASYNC110
        await asyncio.sleep(_POLL_SECONDS)
    commands = DockerCommands(root, settings.docker_host, installation_id)
    await asyncio.to_thread(commands.warm_up)
    return commands


def make_files(commands: CommandRuntime) -> FileRuntime:
    """Return the files of the workspaces in which these commands run."""
    if isinstance(commands, ProcessCommands):
        return ProcessFiles(commands)
    from codehub.runtimes.docker.commands import DockerCommands
    from codehub.runtimes.docker.files import DockerFiles

    assert isinstance(commands, DockerCommands)
    return DockerFiles(commands)


def make_ports(commands: CommandRuntime) -> PortRuntime:
    """Return the ports of the workspaces in which these commands run."""
    if isinstance(commands, ProcessCommands):
        return ProcessPorts(commands)
    from codehub.runtimes.docker.commands import DockerCommands
    from codehub.runtimes.docker.ports import DockerPorts

    assert isinstance(commands, DockerCommands)
    return DockerPorts(commands)
