"""Commands whose monitors keep records and output in directories of this machine.

    {data_dir}/execs/WORKSPACE/EXEC/     the directory of a command (see `exec_directory`)

The directories outlive the container. Root writes them. If the access part runs as a separate user
(ADR 0034), the directory execs/ belongs to its group and passes the group on to what is made in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from codehub.domain.ids import is_label_id, is_path_id
from codehub.runtimes import exec_client
from codehub.runtimes.command_runtime import CommandForgotten, CommandStatus, OutputPiece, TerminalSize
from codehub.runtimes.exec_directory import STDERR, STDOUT, ExecDirectory, ExecRecord, RecordCorrupted

DIRECTORY = "execs"
"""Below the data directory."""
_ASIDE = ".removed-"
"""Prefix of the name of a directory that is about to be removed."""
_SHARED_MODE = 0o2750
_PRIVATE_MODE = 0o700


@dataclass(frozen=True)
class RecordedCommands:
    """All of `CommandRuntime` but `start_command`, for the directories below `root`."""

    root: Path

    def prepare(self, access_group: int | None) -> None:
        """Create the root, for this user and the access part's group."""
        self.root.mkdir(mode=_PRIVATE_MODE, parents=True, exist_ok=True)
        if access_group is None:
            self.root.chmod(_PRIVATE_MODE)
            return
        if self.root.stat().st_gid != access_group:
            for path in (self.root, *self.root.rglob("*")):
                _give_group(path, access_group)
        self.root.chmod(_SHARED_MODE)

    def workspace_directory(self, workspace_id: str) -> Path:
        if not is_label_id(workspace_id):
            raise ValueError(f"{workspace_id!r} is not a workspace id")
        return self.root / workspace_id

    def directory(self, workspace_id: str, exec_id: str) -> ExecDirectory:
        if not is_path_id(exec_id):
            raise ValueError(f"{exec_id!r} is not the id of a command")
        return ExecDirectory(self.workspace_directory(workspace_id) / exec_id)

    async def find_command(self, workspace_id: str, exec_id: str) -> CommandStatus | None:
        return await asyncio.to_thread(_read_status, self.directory(workspace_id, exec_id))

    async def is_unreadable(self, workspace_id: str, exec_id: str) -> bool:
        return await asyncio.to_thread(_is_damaged, self.directory(workspace_id, exec_id))

    async def read_output(
        self, workspace_id: str, exec_id: str, stream: str, offset: int, most: int
    ) -> OutputPiece:
        directory = self.directory(workspace_id, exec_id)
        with _forgotten_if_missing():
            return OutputPiece(*await asyncio.to_thread(directory.read, stream, offset, most))

    async def follow_output(
        self, workspace_id: str, exec_id: str, stream: str, offset: int
    ) -> AsyncGenerator[OutputPiece, None]:
        directory = self.directory(workspace_id, exec_id)
        with _forgotten_if_missing():
            async with contextlib.aclosing(exec_client.follow(directory, stream, offset)) as pieces:
                async for found, data in pieces:
                    yield OutputPiece(found, data)

    async def send_input(
        self, workspace_id: str, exec_id: str, chunks: AsyncIterator[bytes], *, close: bool
    ) -> None:
        await exec_client.send_input(self.directory(workspace_id, exec_id), chunks, close=close)

    async def signal_command(self, workspace_id: str, exec_id: str, number: int) -> None:
        await exec_client.control(self.directory(workspace_id, exec_id), "signal", number=number)

    async def resize_terminal(self, workspace_id: str, exec_id: str, size: TerminalSize) -> None:
        directory = self.directory(workspace_id, exec_id)
        await exec_client.control(directory, "resize", rows=size.rows, cols=size.cols)

    async def kill_command(self, workspace_id: str, exec_id: str, reason: str) -> None:
        await exec_client.control(self.directory(workspace_id, exec_id), "kill", reason=reason)

    async def kept_commands(self) -> Mapping[str, frozenset[str]]:
        return await asyncio.to_thread(self._list)

    async def forget_command(self, workspace_id: str, exec_id: str) -> None:
        await asyncio.to_thread(self._remove_tree, self.directory(workspace_id, exec_id).path)

    def set_aside(self, workspace_id: str) -> str | None:
        """Rename the directory of a workspace, unless a socket in it accepts connections.

        No thread does so: it would go on after the caller's transaction was cancelled.
        """
        path = self.workspace_directory(workspace_id)
        if not path.is_dir() or any(map(_accepts_connections, path.iterdir())):
            return None
        aside = Path(tempfile.mkdtemp(prefix=_ASIDE, dir=self.root))
        return path.rename(aside).name

    def put_back(self, workspace_id: str, aside: str) -> None:
        with contextlib.suppress(OSError):  # a start has made a new one
            (self.root / aside).rename(self.workspace_directory(workspace_id))

    async def remove_set_aside(self) -> None:
        for path in await asyncio.to_thread(lambda: list(self.root.glob(f"{_ASIDE}*"))):
            await asyncio.to_thread(self._remove_tree, path)

    def _list(self) -> Mapping[str, frozenset[str]]:
        found = {}
        for path in self.root.iterdir() if self.root.exists() else ():
            if is_label_id(path.name) and path.is_dir():
                names = frozenset(entry.name for entry in os.scandir(path) if entry.is_dir())
                found[path.name] = frozenset(name for name in names if is_path_id(name))
        return found

    def _remove_tree(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)


@contextlib.contextmanager
def _forgotten_if_missing() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise CommandForgotten("the output of this command is no longer kept") from error


def _read_status(directory: ExecDirectory) -> CommandStatus | None:
    try:
        record = directory.read_record()
        return None if record is None else _status_of(directory, record)
    except (FileNotFoundError, RecordCorrupted):
        return None


def _is_damaged(directory: ExecDirectory) -> bool:
    try:
        directory.read_record()
    except RecordCorrupted:
        return True
    return False


def _status_of(directory: ExecDirectory, record: ExecRecord) -> CommandStatus:
    return CommandStatus(
        record.state,
        record.started_at,
        record.ended_at,
        record.exit_code,
        record.reason,
        record.dropped,
        directory.size(STDOUT),
        directory.size(STDERR),
    )


def _accepts_connections(path: Path) -> bool:
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        # Anything but a refusal may come from a listener, such as a full queue.
        return client.connect_ex(str(path)) not in (errno.ECONNREFUSED, errno.ENOENT)


def _give_group(path: Path, group: int) -> None:
    with contextlib.suppress(FileNotFoundError):  # a monitor removes old output
        os.chown(path, -1, group, follow_symlinks=False)
        if path.is_dir():
            path.chmod(_SHARED_MODE)
