"""Flushing a whole file system: faster than one flush for each of many files."""

import ctypes
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

_libc = ctypes.CDLL(None, use_errno=True)
_SYNC_PAUSE = 1.0


def sync_filesystem(path: Path) -> None:
    """Flush everything of the file system that holds `path`, and raise what it could not write."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _sync(fd, path)
    finally:
        os.close(fd)


@contextmanager
def synced_filesystem(path: Path) -> Iterator[None]:
    """Flush the file system of `path` every second beside the body, and once more after it.

    The disk writes the first files while the body writes the next ones, so the last flush is short.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    ended = Event()

    def sync_until_ended() -> None:
        while not ended.wait(_SYNC_PAUSE):
            _sync(fd, path)

    try:
        with ThreadPoolExecutor(1, thread_name_prefix="sync") as thread:
            syncing = thread.submit(sync_until_ended)
            try:
                yield
            finally:
                ended.set()
        syncing.result()  # the kernel reports a failed write once, so this error must not be lost
        _sync(fd, path)
    finally:
        os.close(fd)


def _sync(fd: int, path: Path) -> None:
    if _libc.syncfs(fd) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path))
