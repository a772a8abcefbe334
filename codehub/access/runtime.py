"""The runtime's commands and logs, as the access part reaches them."""

from codehub.domain.problems import InvalidState
from codehub.runtimes.command_runtime import CommandRefused, CommandRuntime, ExecRequest
from codehub.runtimes.process.commands import ProcessCommands
from codehub.runtimes.recorded_commands import DIRECTORY, RecordedCommands
from codehub.settings import Settings


class UnsupportedCommands(RecordedCommands):
    """Commands of a runtime that starts none. What was recorded before can still be read."""

    async def start_command(self, workspace_id: str, request: ExecRequest) -> None:
        raise CommandRefused("the runtime of this installation does not run commands")

    async def logs(self, workspace_id: str, lines: int) -> str:
        raise InvalidState("The runtime of this installation offers no logs here.")


def make_commands(settings: Settings) -> CommandRuntime:
    root = settings.data_dir.absolute() / DIRECTORY
    return UnsupportedCommands(root) if settings.runtime == "docker" else ProcessCommands(root)
