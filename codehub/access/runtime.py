"""The runtime's commands and logs, as the access part reaches them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.database import installation
from codehub.runtimes.command_runtime import CommandRuntime
from codehub.runtimes.files.client import FileRuntime, FileSession, FilesUnavailable
from codehub.runtimes.process.commands import ProcessCommands
from codehub.runtimes.process.files import ProcessFiles
from codehub.runtimes.recorded_commands import DIRECTORY
from codehub.settings import Settings

_POLL_SECONDS: Final = 0.2


class UnsupportedFiles:
    """`FileRuntime` of a runtime whose workspaces this process cannot enter."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    @asynccontextmanager
    async def open_files(self, workspace_id: str) -> AsyncIterator[FileSession]:
        raise FilesUnavailable(self._reason)
        yield  # a generator, as the protocol requires


async def make_commands(settings: Settings, engine: AsyncEngine) -> CommandRuntime:
    root = settings.data_dir.absolute() / DIRECTORY
    if settings.runtime == "process":
        return ProcessCommands(root)
    from codehub.runtimes.docker.commands import DockerCommands  # loaded where Docker is used

    # In a new installation, the first coordinator creates the id: in another process.
    while (installation_id := await installation.find_id(engine)) is None:  # noqa: ASYNC110
        await asyncio.sleep(_POLL_SECONDS)
    return DockerCommands(root, settings.docker_host, installation_id)


def make_files(settings: Settings) -> FileRuntime:
    if settings.runtime == "docker":
        return UnsupportedFiles("files are not offered on the Docker runtime: use a command")
    return ProcessFiles(ProcessCommands(settings.data_dir.absolute() / DIRECTORY))
