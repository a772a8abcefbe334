"""The directory of one command: its record and its output. Standard library only (see `keeper`).

    record          the state of the command (see `ExecRecord`)
    stdout.N        a segment of standard output, or of a terminal; N is the offset of its first byte
    stderr.N        a segment of standard error
    control.sock    input, signals and notifications (see `exec_control`)

Only CodeHub can reach it: the access part by its group (see `recorded_commands`). The segments of a
stream hold its newest bytes, up to a limit. Bytes that were dropped because the disk was full
count: the next segment starts behind them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from codehub.host.processes import ProcessId, boot_id

STDOUT, STDERR = "stdout", "stderr"
STREAMS = (STDOUT, STDERR)
CONTROL_SOCKET = "control.sock"
_RECORD = "record"
_RECORD_BYTES = 4096
UMASK = 0o027
"""umask of a monitor: the group of the access part may read."""
_FILE_MODE = 0o640
_SEGMENTS = 8
"""Segments per stream. The oldest is removed as a whole, so that an eighth more is kept at times."""


def make_shared_directory(path: Path) -> None:
    """Create a workspace's directory, in which the group that it inherits may read."""
    path.mkdir(exist_ok=True)
    path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o7 | 0o050)


class ExecState(StrEnum):
    RUNNING = "running"
    EXITED = "exited"
    KILLED = "killed"
    LOST = "lost"
    """Its monitor ended without recording the end of the command."""


class RecordCorrupted(Exception):  # noqa: N818 - a fact, not a fault
    """The record cannot be read."""


@dataclass(frozen=True)
class ExecRecord:
    """The state of a command. Later versions read it too, so fields are never renamed."""

    state: ExecState
    boot_id: str
    monitor: ProcessId
    started_at: float
    ended_at: float | None = None
    exit_code: int | None = None
    """128 plus the signal's number if a signal ended the command."""
    reason: str | None = None
    """Why CodeHub killed the command."""
    dropped: int = 0
    """Bytes of output that were lost because the disk was full."""

    def is_alive(self) -> bool:
        return self.boot_id == boot_id() and self.monitor.is_alive()


class ExecDirectory:
    """Paths and record of one command."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._record = path / _RECORD

    def create(self) -> bool:
        """Create the directory, or return False if the command was started before."""
        try:
            self.path.mkdir(mode=0o750)
        except FileExistsError:
            return False
        return True

    def remove(self) -> None:
        """Remove the directory of a command that was not started."""
        for entry in os.listdir(self.path):  # noqa: PTH208 - names only
            (self.path / entry).unlink()
        self.path.rmdir()

    def write_record(self, record: ExecRecord) -> None:
        """Write the record over the one before, so that its end can be recorded on a full disk."""
        content = json.dumps(asdict(record)).encode().ljust(_RECORD_BYTES)
        descriptor = os.open(self._record, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            os.pwrite(descriptor, content, 0)
        finally:
            os.close(descriptor)

    def read_record(self) -> ExecRecord | None:
        """Return the record, with `LOST` if its monitor is gone; None if there is no such command."""
        record = self._read_record()
        if record is None or record.state is not ExecState.RUNNING or record.is_alive():
            return record
        return self._read_record_of_ended_monitor()

    def _read_record_of_ended_monitor(self) -> ExecRecord | None:
        """Read again, because the monitor may have recorded the end just before it exited."""
        record = self._read_record()
        if record is None or record.state is not ExecState.RUNNING:
            return record
        return ExecRecord(ExecState.LOST, record.boot_id, record.monitor, record.started_at)

    def _read_record(self) -> ExecRecord | None:
        try:
            raw = json.loads(self._record.read_bytes())
            raw["state"] = ExecState(raw["state"])
            raw["monitor"] = ProcessId(**raw["monitor"])
            return ExecRecord(**raw)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise RecordCorrupted(f"{self._record} is damaged: {error}") from error

    def segments(self, stream: str) -> list[tuple[int, Path]]:
        """Return the segments of a stream with the offsets of their first bytes, oldest first."""
        prefix = f"{stream}."
        found = [entry for entry in os.listdir(self.path) if entry.startswith(prefix)]  # noqa: PTH208 - names only
        starts = sorted(int(name.removeprefix(prefix)) for name in found)
        return [(start, self.path / f"{prefix}{start}") for start in starts]

    def size(self, stream: str) -> int:
        """Return the offset behind the last byte of a stream."""
        segments = self.segments(stream)
        if not segments:
            return 0
        start, path = segments[-1]
        return start + path.stat().st_size

    def read(self, stream: str, offset: int, most: int) -> tuple[int, bytes]:
        """Return up to `most` bytes from an offset, and the offset of the first one of them.

        If the bytes at the offset are no longer kept, this is the next kept one.
        """
        for start, path in self._from(stream, offset):
            position = max(offset, start)
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:  # removed meanwhile
                file.seek(position - start)
                if data := file.read(most):
                    return position, data
        return offset, b""

    def _from(self, stream: str, offset: int) -> list[tuple[int, Path]]:
        """Return the segment that holds an offset, and the later ones."""
        segments = self.segments(stream)
        first = max((index for index, (start, _) in enumerate(segments) if start <= offset), default=0)
        return segments[first:]


class OutputWriter:
    """Writer of one stream, which keeps its newest bytes in segments."""

    def __init__(self, directory: ExecDirectory, stream: str, window: int, reserve: int = 0) -> None:
        """`window` is how many bytes are kept, and `reserve` how many the disk is to have free."""
        self._directory = directory.path
        self._reserve = reserve
        self._stream = stream
        self._window = window
        self._segment_bytes = max(1, window // _SEGMENTS)
        self._starts: list[int] = []
        self._descriptor: int | None = None
        self._offset = 0
        self._has_gap = False
        self.dropped = 0

    def write(self, data: bytes | memoryview) -> None:
        """Write output. On a full disk it is dropped: the command must not wait for space."""
        rest = memoryview(data)
        while rest:
            try:
                written = os.write(self._segment(), rest[: self._segment_rest()])
            except OSError:
                self._offset += len(rest)
                self.dropped += len(rest)
                self._has_gap = True
                self.close()
                return
            self._offset += written
            rest = rest[written:]

    def close(self) -> None:
        """Close the present segment. A later write opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _segment_rest(self) -> int:
        return self._starts[-1] + self._segment_bytes - self._offset

    def _segment(self) -> int:
        """Return the descriptor of a segment that is not full."""
        if self._descriptor is not None and self._segment_rest() > 0:
            return self._descriptor
        self.close()
        self._check_free_space()
        if not self._starts or self._has_gap or self._segment_rest() <= 0:
            self._starts.append(self._offset)
            self._has_gap = False
            self._remove_oldest()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self._path(self._starts[-1]), flags, _FILE_MODE)
        return self._descriptor

    def _check_free_space(self) -> None:
        """Raise OSError if the disk has less free than its reserve: others need that to go on."""
        if self._reserve:
            disk = os.statvfs(self._directory)
            if disk.f_bavail * disk.f_frsize < self._reserve:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _remove_oldest(self) -> None:
        while len(self._starts) > 1 and self._offset - self._starts[1] >= self._window:
            self._path(self._starts.pop(0)).unlink(missing_ok=True)

    def _path(self, start: int) -> Path:
        return self._directory / f"{self._stream}.{start}"
