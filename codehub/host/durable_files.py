"""Writes that survive a power cut: flush the file, then the directory that names it."""

import ctypes
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from codehub.host.atomic_files import replace_file

_libc = ctypes.CDLL(None, use_errno=True)
_libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_SYNC_FILE_RANGE_WRITE = 2
_PRIVATE = 0o600
_STEP = 8 << 20
# Larger writes take larger pages, which the host of a virtual machine may have to find first: at
# times that made a stream slower by a quarter.
_WRITE = 128 << 10


def fsync_path(path: Path, *, follow_symlinks: bool = False) -> None:
    """Flush one file or directory.

    The flush of a directory makes renames and new names in it durable.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if follow_symlinks else os.O_NOFOLLOW))
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file in one step; it is on the disk on return."""
    replace_file(path, data, durable=True)
    fsync_path(path.parent)


def create_durably(path: Path, data: bytes) -> bool:
    """Create a file with this content, or return False if it exists; it is on the disk on return.

    The file gets its name by a link, which fails if the name is taken. So one of several writers
    wins, and no reader sees a part of the content.
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


def write_stream(path: Path, chunks: Iterable[bytes], mode: int = _PRIVATE) -> None:
    """Replace a file by a stream, in one step at its end; a stream that fails leaves nothing.

    The content is on the disk before the file gets its name, so a power cut never leaves an empty
    file. The disk begins to write while the stream arrives, so the last flush is short.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}#1")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, _PRIVATE)
    try:
        with os.fdopen(fd, "wb") as file:
            if mode != _PRIVATE:
                os.fchmod(fd, mode)  # whatever the umask is
            begun = written = 0
            for chunk in chunks:
                for piece in _pieces(chunk):
                    written += file.write(piece)
                if written - begun >= _STEP:
                    # Only a hint to the kernel: without it the flush at the end takes longer.
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
    """Return the content of a file, or None if it does not exist."""
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
