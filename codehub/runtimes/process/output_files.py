"""Output of a workspace, in two files of bounded size. Standard library only (see `keeper`).

Reading output costs CodeHub: without a budget, `yes` cost 38 % of a core and 191 MB/s of writes.
Beyond its budget the keeper stops reading. The pipe fills, and only the workspace waits.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from codehub.runtimes.process.state_directory import LOG, LOG_BYTES, OLDER_LOG, StateDirectory

READ_BYTES = 64 << 10
"""The most that one read takes: all that a pipe holds, unless its writer has enlarged it."""
BURST_BYTES = 1 << 20
BYTES_PER_SECOND = 256 << 10
_MIN_COST = 4 << 10
"""The least that a read costs, because small reads are as much work as large ones."""


class ReadBudget:
    """Token bucket for reads of a workspace's output. `now` is on the monotonic clock."""

    def __init__(self, now: float) -> None:
        self._tokens = float(BURST_BYTES)
        self._at = now

    def spend(self, count: int, now: float) -> float | None:
        """Pay for a read of `count` bytes; return the time of the next one, or None for now.

        The pause lasts until a whole read is affordable, so that a flood costs few reads.
        """
        self._tokens = min(BURST_BYTES, self._tokens + (now - self._at) * BYTES_PER_SECOND)
        self._at = now
        self._tokens -= max(count, _MIN_COST)
        return None if self._tokens > 0 else now + (READ_BYTES - self._tokens) / BYTES_PER_SECOND


class Output:
    """Writer of a workspace's output, into two files of at most `LOG_BYTES` each."""

    def __init__(self, directory: StateDirectory, shared: Path | None = None) -> None:
        """`shared` is a directory in which the access part may read the files too."""
        self._directory = directory
        self._shared = shared
        self._lost = 0
        self._open()

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self._directory.log_file, flags, 0o600)
        self._size = os.fstat(self._descriptor).st_size
        if self._shared is not None:
            with contextlib.suppress(OSError):  # such as a full disk: the output goes on
                self._share(self._shared)

    def _share(self, shared: Path) -> None:
        """Link the files into the shared directory, for the group of that directory.

        The links outlive the state directory, so the output can still be read in standby.
        """
        os.fchown(self._descriptor, -1, shared.stat().st_gid)
        os.fchmod(self._descriptor, 0o640)
        shared_log = shared / LOG
        if shared_log.exists() and not self._directory.older_log_file.exists():
            shared_log.replace(shared / OLDER_LOG)  # of a container whose state directory is gone
        for file in (self._directory.older_log_file, self._directory.log_file):
            link = shared / file.name
            if file.exists():
                link.unlink(missing_ok=True)
                os.link(file, link, follow_symlinks=False)

    def adopt_standard_streams(self) -> None:
        """Replace the inherited standard streams, so that the keeper's own errors go to the log."""
        null = os.open(os.devnull, os.O_RDWR)
        for stream, target in ((0, null), (1, self._descriptor), (2, self._descriptor)):
            os.dup2(target, stream)
        os.close(null)

    def write(self, data: bytes) -> None:
        """Write output.

        On a full disk it is dropped and counted: the workspace must not wait for space.
        """
        try:
            if self._size + len(data) > LOG_BYTES:
                self._rotate()
            note = b"[%d bytes of output were lost: the disk was full]\n" % self._lost if self._lost else b""
            self._size += os.write(self._descriptor, note + data)
            self._lost = 0
        except OSError:
            self._lost += len(data)

    def _rotate(self) -> None:
        full = self._descriptor
        self._directory.log_file.replace(self._directory.older_log_file)
        self._open()
        os.close(full)
