"""Locks on files and directories (flock), which the kernel releases when their holders die.

A lock belongs to the open file: a child that inherits the descriptor holds the lock, too. Taking a
lock therefore proves that its former holder is dead, and all children that it gave the descriptor
to.

The keeper's modules import this: import little here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_RETRY_SECONDS = 0.02


def try_lock(path: Path) -> int | None:
    """Lock a file, which is created if missing.

    Return its descriptor, or None if someone has the lock.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            is_ours = try_lock_descriptor(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        if is_ours and is_file_at(descriptor, path):
            return descriptor
        os.close(descriptor)
        if not is_ours:
            return None


def lock_within(path: Path, seconds: float) -> int | None:
    """Lock a file like `try_lock`, and retry for some time while someone has the lock."""
    deadline = time.monotonic() + seconds
    while (descriptor := try_lock(path)) is None:
        if time.monotonic() >= deadline:
            return None
        time.sleep(_RETRY_SECONDS)
    return descriptor


@contextlib.contextmanager
def locked(path: Path, *, on_wait: Callable[[], None] = lambda: None, mode: int = 0o600) -> Iterator[None]:
    """Hold the lock of a directory, or of a file, which is created if missing.

    Wait while someone else has the lock, and call `on_wait` before that.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY if path.is_dir() else os.O_RDWR | os.O_CREAT
    descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
    try:
        if not try_lock_descriptor(descriptor):
            on_wait()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Return whether someone has the lock.

    Two callers at once do not take each other for the holder.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def try_lock_descriptor(descriptor: int) -> bool:
    """Lock an open file. Return False if someone else has the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_file_at(descriptor: int, path: Path) -> bool:
    """Return whether the path still names this open file.

    The lock of a removed file protects nothing.
    """
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
