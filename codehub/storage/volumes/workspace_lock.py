"""Locks that die with their holder, and the fence that keeps a late leader out.

flock belongs to the open file: a child that inherits the descriptor holds the lock, too. A lock that can be
taken therefore proves that its former holder and all children it gave the descriptor to are dead.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from codehub.storage.durable import read_if_there, write_durably
from codehub.storage.errors import StaleEpoch, Unobservable, VolumeBusy
from codehub.storage.installation_marker import check_directory
from codehub.storage.volumes.workspace_directory import WorkspaceDirectory

_PAUSE = 0.02


def try_lock(path: Path) -> int | None:
    """Take the lock and return its descriptor, or None when someone has it."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        if is_file_at(fd, path):
            return fd
        os.close(fd)


def is_file_at(fd: int, path: Path) -> bool:
    """Whether the path still names this open file: a lock on a removed file locks nothing."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(fd)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def is_locked(path: Path) -> bool:
    """Whether someone has the lock. Two who ask at once do not take each other for the holder."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def lock_within(path: Path, seconds: float) -> int | None:
    """Take the lock, trying for some time."""
    deadline = time.monotonic() + seconds
    while (fd := try_lock(path)) is None:
        if time.monotonic() >= deadline:
            return None
        time.sleep(_PAUSE)
    return fd


def acquire(directory: WorkspaceDirectory, installation_id: str, epoch: int, wait: float = 0.0) -> int:
    """Lock a workspace for one leader's epoch, fencing out all earlier ones. Returns the descriptor."""
    check_directory(directory.root, installation_id)
    directory.ensure()
    fd = lock_within(directory.lock, wait)
    if fd is None:
        raise VolumeBusy(f"a storage job is working on the home of workspace {directory.workspace_id}")
    try:
        _raise_fence(directory, epoch)
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def held(directory: WorkspaceDirectory, installation_id: str, epoch: int, wait: float = 0.0) -> Iterator[int]:
    fd = acquire(directory, installation_id, epoch, wait)
    try:
        yield fd
    finally:
        os.close(fd)


def _raise_fence(directory: WorkspaceDirectory, epoch: int) -> None:
    content = read_if_there(directory.fence)
    if content is not None:
        try:
            newest = int(content)
        except ValueError as error:
            raise Unobservable(f"{directory.fence} does not hold an epoch") from error
        if newest > epoch:
            raise StaleEpoch(epoch, newest)
        if newest == epoch:
            return
    _write_fence(directory.fence, b"%020d\n" % epoch)


def _write_fence(path: Path, content: bytes) -> None:
    """Over what is there, in its one block: also on a full disk an archive must begin, which makes room."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        write_durably(path, content)
        return
    try:
        os.pwrite(fd, content, 0)
        os.fsync(fd)
    finally:
        os.close(fd)
