"""The protocol for commands in running workspaces, and the types that it uses.

It names no paths, because a runtime may keep what it knows of a command anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from codehub.runtimes.exec_directory import STDERR, STDOUT, STREAMS, ExecState
from codehub.runtimes.exec_request import CommandRefused, ExecRequest, TerminalSize

__all__ = [
    "STDERR", "STDOUT", "STREAMS", "CommandForgotten", "CommandRefused", "CommandRuntime", "CommandStatus",
    "ControlFailed", "ExecRequest", "ExecState", "LogsUnavailable", "OutputPiece", "TerminalSize",
]  # fmt: skip


class CommandForgotten(Exception):  # noqa: N818 - a fact, not a fault
    """Nothing is kept of the command: it never started, or its output was removed."""


class ControlFailed(Exception):  # noqa: N818 - a fact, not a fault
    """The command refused a request, or has ended. The message is for the person who asked."""


class LogsUnavailable(Exception):  # noqa: N818 - a fact, not a fault
    """The output of a container cannot be read. The message is for the person who asked."""


@dataclass(frozen=True)
class CommandStatus:
    """The state of a command, as its monitor records it. Times are seconds since the epoch."""

    state: ExecState
    started_at: float
    ended_at: float | None
    exit_code: int | None
    """128 plus the signal's number if a signal ended the command."""
    reason: str | None
    """Why CodeHub killed the command."""
    dropped_bytes: int
    """Bytes of output that were lost because the disk was full."""
    stdout_bytes: int
    """All bytes that the command has written, whether or not they are still kept."""
    stderr_bytes: int


@dataclass(frozen=True)
class OutputPiece:
    """Some output of one stream. A gap before it means that its bytes are no longer kept."""

    offset: int
    data: bytes


class CommandRuntime(Protocol):
    """Interface to the commands of a runtime's workspaces, and to what the workspaces have written.

    Calls about one command raise `CommandForgotten` if nothing is kept of it. Those that reach its
    process raise `ControlFailed` if it has ended.
    """

    async def start_command(self, workspace_id: str, request: ExecRequest) -> None:
        """Start a command in a running container, at most once for each `exec_id`.

        Raise `CommandRefused` if the container runs no commands.
        """

    async def find_command(self, workspace_id: str, exec_id: str) -> CommandStatus | None:
        """Return the state of a command, or None if nothing is known of it."""

    async def is_unreadable(self, workspace_id: str, exec_id: str) -> bool:
        """Return whether a command was started, but its state cannot be read."""

    async def read_output(
        self, workspace_id: str, exec_id: str, stream: str, offset: int, most: int
    ) -> OutputPiece:
        """Return at most `most` bytes from an offset, or from the next byte that is still kept."""

    def follow_output(
        self, workspace_id: str, exec_id: str, stream: str, offset: int
    ) -> AsyncGenerator[OutputPiece, None]:
        """Yield output from an offset until the command has ended. Readers never delay it."""

    async def send_input(
        self, workspace_id: str, exec_id: str, chunks: AsyncIterator[bytes], *, close: bool
    ) -> None:
        """Send input as fast as the command takes it, and end it if `close` is set."""

    async def signal_command(self, workspace_id: str, exec_id: str, number: int) -> None:
        """Send a signal to the command's process group."""

    async def resize_terminal(self, workspace_id: str, exec_id: str, size: TerminalSize) -> None: ...

    async def kill_command(self, workspace_id: str, exec_id: str, reason: str) -> None:
        """Kill all processes of the command."""

    async def kept_commands(self) -> Mapping[str, frozenset[str]]:
        """Return the ids of all commands of which something is kept, by workspace."""

    def set_aside(self, workspace_id: str) -> str | None:
        """Set aside what is kept of a workspace, and return the new name; None if it serves commands."""

    def put_back(self, workspace_id: str, aside: str) -> None:
        """Undo `set_aside`, unless the workspace was started since."""

    async def remove_set_aside(self) -> None:
        """Remove everything that was set aside, also what an earlier call left behind."""

    def read_logs(
        self, workspace_id: str, lines: int, until: asyncio.Event
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Yield the last lines of the container's output, then what follows until `until` is set.

        Output of the containers that replace it follows too. Readers never delay a container. Raise
        `LogsUnavailable` if the output cannot be read, also while it is read.
        """

    async def has_logs(self, workspace_id: str) -> bool:
        """Return whether the output of a running container can be read.

        It cannot be on the process runtime if an older version started the container.
        """

    async def forget_command(self, workspace_id: str, exec_id: str) -> None:
        """Remove what is kept of a command that has ended. It succeeds if nothing is kept."""
