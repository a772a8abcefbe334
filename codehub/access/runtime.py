"""The runtime's commands and logs, as the access part reaches them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from codehub.runtimes.command_runtime import CommandRefused, CommandRuntime, ExecRequest
from codehub.runtimes.files.client import FileRuntime, FileSession, FilesUnavailable
from codehub.runtimes.process.commands import ProcessCommands
from codehub.runtimes.process.files import ProcessFiles
from codehub.runtimes.recorded_commands import DIRECTORY, RecordedCommands
from codehub.settings import Settings


class UnsupportedCommands(RecordedCommands):
    """Commands of a runtime that starts none. What was recorded before can still be read."""

    async def start_command(self, workspace_id: str, request: ExecRequest) -> None:
        raise CommandRefused("the runtime of this installation does not run commands")


class UnsupportedFiles:
    """`FileRuntime` of a runtime whose workspaces this process cannot enter."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    @asynccontextmanager
    async def open_files(self, workspace_id: str) -> AsyncIterator[FileSession]:
        raise FilesUnavailable(self._reason)
        yield  # a generator, as the protocol requires


def make_commands(settings: Settings) -> CommandRuntime:
    root = settings.data_dir.absolute() / DIRECTORY
    return UnsupportedCommands(root) if settings.runtime == "docker" else ProcessCommands(root)


def make_files(settings: Settings) -> FileRuntime:
    if settings.runtime == "docker":
        return UnsupportedFiles("files are not offered on the Docker runtime: use a command")
    return ProcessFiles(ProcessCommands(settings.data_dir.absolute() / DIRECTORY))
