"""Writes that survive a power cut: the file, then the directory that names it."""

import ctypes
import os
import secrets
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

_libc = ctypes.CDLL(None, use_errno=True)
_libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_SYNC_FILE_RANGE_WRITE = 2
_STEP = 8 << 20
# Larger writes take larger pages, which a virtual machine's host may have to find first: at times
# slower by a quarter.
_WRITE = 128 << 10
_SYNC_PAUSE = 1.0


def fsync_path(path: Path) -> None:
    """Flush one file or directory. A directory's flush makes renames and new names in it last."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file in one step; after the return it is on the disk."""
    replace_file(path, data, durable=True)
    fsync_path(path.parent)


def create_durably(path: Path, data: bytes) -> bool:
    """Create a file with this content, or return False when there is one; it is on the disk on return.

    The file gets its name by a link, which fails where the name is taken: of several writers one wins, and
    no reader sees a part of the content.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            return False
    finally:
        temporary.unlink(missing_ok=True)
    fsync_path(path.parent)
    return True


def replace_file(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Replace a file in one step, so that a reader sees the old or the new content, never a part.

    Writers of one file hold a lock. What a killed one leaves is taken over by the next.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def write_stream(path: Path, chunks: Iterable[bytes]) -> None:
    """Replace a file by a stream, in one step at its end; a stream that fails leaves nothing.

    What carries the name is on the disk, so that a power cut never leaves an empty file of it. The disk
    begins to write at once, so that little is left to do for that.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}#1")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            begun = written = 0
            for chunk in chunks:
                for piece in _pieces(chunk):
                    written += file.write(piece)
                if written - begun >= _STEP:
                    # Only a hint: without it the flush takes longer.
                    _libc.sync_file_range(fd, begun, written - begun, _SYNC_FILE_RANGE_WRITE)
                    begun = written
            file.flush()
            os.fsync(fd)
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _pieces(chunk: bytes) -> Iterator[memoryview]:
    view = memoryview(chunk)
    return (view[start : start + _WRITE] for start in range(0, len(chunk), _WRITE))


def read_if_there(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def make_directory(path: Path, mode: int) -> None:
    """Make a directory and its missing parents with exactly this mode, durably."""
    if path.is_dir():
        return
    make_directory(path.parent, mode)
    path.mkdir(exist_ok=True)
    path.chmod(mode)
    fsync_path(path.parent)


def sync_filesystem(path: Path) -> None:
    """Flush everything of the file system that holds `path`, and raise what it could not write."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _sync(fd, path)
    finally:
        os.close(fd)


@contextmanager
def kept_synced(path: Path) -> Iterator[None]:
    """Flush the file system of `path` again and again, and for good at the end.

    The disk writes what comes first while the rest is still coming, instead of resting until the last flush.
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
        syncing.result()  # a failed write is told once: whoever learns of it has to pass it on
        _sync(fd, path)
    finally:
        os.close(fd)


def _sync(fd: int, path: Path) -> None:
    if _libc.syncfs(fd) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path))
