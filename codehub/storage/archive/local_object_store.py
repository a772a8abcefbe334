"""Object store in a local directory."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from stat import S_ISREG

from codehub.host.durable_files import create_durably, fsync_path, write_stream
from codehub.storage.archive.group_access import (
    PRIVATE_FILE_MODE,
    SHARED_FILE_MODE,
    is_shared,
    make_directory,
)
from codehub.storage.archive.object_store import SMALL_BYTES, ObjectStore, StoredObject


class LocalObjectStore(ObjectStore):
    """Object store in a directory. A file gets its object's name once it is on the disk."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self._root = root

    def read(self, path: str) -> bytes | None:
        return self._if_exists(lambda: _read_start(self._root / path))

    def size(self, path: str) -> int | None:
        found = self._if_exists((self._root / path).stat)
        return found.st_size if found is not None and S_ISREG(found.st_mode) else None

    def list(self) -> "list[StoredObject]":
        return self._do(lambda: [*_files_below(self._root)])

    def write(self, path: str, content: bytes) -> None:
        self._do(lambda: self._write(path, [content]))
        self.flush(path)

    def create(self, path: str, content: bytes) -> bool:
        return self._do(lambda: create_durably(self._root / path, content))

    def remove(self, path: str) -> None:
        self._if_exists((self._root / path).unlink)

    def upload(self, path: str, chunks: Iterable[bytes], size_limit: Callable[[], int]) -> bool:
        self._write_from(chunks, lambda source: self._write(path, source))
        return False

    def _write(self, path: str, chunks: Iterable[bytes]) -> None:
        target, shared = self._root / path, is_shared(self._root)
        for directory in [*target.relative_to(self._root).parents][-2::-1]:  # without the root
            make_directory(self._root / directory, shared=shared)
        write_stream(target, chunks, SHARED_FILE_MODE if shared else PRIVATE_FILE_MODE)

    def flush(self, path: str) -> None:
        target = self._root / path
        self._do(lambda: fsync_path(target))
        for directory in target.relative_to(self._root).parents:
            here = self._root / directory
            self._do(lambda here=here: fsync_path(here))  # type: ignore[misc]

    def remove_unfinished(self, path: str) -> None:
        """Remove unfinished files beside this object, and its directories if they are empty."""
        target = self._root / path
        for leftover in target.parent.glob("*#*"):
            self._do(lambda leftover=leftover: leftover.unlink(missing_ok=True))  # type: ignore[misc]
        for directory in (target.parent, target.parent.parent):
            with suppress(OSError):
                directory.rmdir()

    def can_list_unfinished(self) -> bool:
        return True

    def _range(self, path: str, start: int, length: int) -> memoryview:
        with (self._root / path).open("rb", buffering=0) as file:
            file.seek(start)
            return memoryview(_read_fully(file.fileno(), length))


def _read_start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(SMALL_BYTES)


def _read_fully(fd: int, length: int) -> bytearray:
    """Read `length` bytes, or fewer at the end of the file."""
    content = bytearray(length)
    filled = 0
    while filled < length and (count := os.readv(fd, [memoryview(content)[filled:]])):
        filled += count
    del content[filled:]
    return content


def _files_below(root: Path) -> Iterator[StoredObject]:
    """Yield every file but those removed meanwhile; raise OSError for an unreadable directory.

    A missing root is an error, too: a store that was unmounted is not empty.
    """

    def on_error(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError) or Path(error.filename) == root:
            raise error

    for directory, _, names in os.walk(root, onerror=on_error):
        for name in names:
            path = Path(directory, name)
            with suppress(FileNotFoundError):
                found = path.stat()
                modified = datetime.fromtimestamp(found.st_mtime, UTC)
                yield StoredObject(str(path.relative_to(root)), found.st_size, modified)
