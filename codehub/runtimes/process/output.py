"""What a workspace prints, kept in two files of bounded size. Standard library only (see `keeper`)."""

from __future__ import annotations

import os

from codehub.runtimes.process.directory import LOG_BYTES, Directory


class Output:
    """The tree's output, in two files of at most `LOG_BYTES` each."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._lost = 0
        self._open()

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self._directory.log_file, flags, 0o600)
        self._size = os.fstat(self._descriptor).st_size

    def adopt_standard_streams(self) -> None:
        """Let go of the starter's streams; what the keeper itself has to complain about joins the log."""
        null = os.open(os.devnull, os.O_RDWR)
        for stream, target in ((0, null), (1, self._descriptor), (2, self._descriptor)):
            os.dup2(target, stream)
        os.close(null)

    def write(self, data: bytes) -> None:
        """A full disk costs output, never the workspace: its writers must not block on us."""
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
