"""Plain objects behind one interface: a local directory or an S3-compatible service."""

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, S3Store

from codehub.storage.durable import fsync_path, write_stream
from codehub.storage.errors import NoSpace, StorageProblem, StoreTrouble, says_no_space
from codehub.storage.words import store_words

_SMALL = 64 << 10
_READ = 8 << 20
_PART = 6 << 20
_MAX_PARTS = 9000
UPLOAD_MEMORY = 12 << 20

T = TypeVar("T")


@dataclass(frozen=True)
class StoredObject:
    path: str
    size: int
    last_modified: datetime


class Objects:
    """Objects of one store. A missing one is None; trouble is StoreTrouble, a full disk NoSpace."""

    def __init__(self, store: LocalStore | S3Store, place: str) -> None:
        self._store = store
        self._place = place

    def read(self, path: str) -> bytes | None:
        """A small object, or the beginning of one that is not."""
        return self._if_there(lambda: _beginning(obstore.get(self._store, path).stream(_SMALL)))

    def size(self, path: str) -> int | None:
        return self._if_there(lambda: obstore.head(self._store, path)["size"])

    def list(self) -> "list[StoredObject]":
        listed = self._do(lambda: obstore.list(self._store).collect())
        return [StoredObject(meta["path"], meta["size"], meta["last_modified"]) for meta in listed]

    def write(self, path: str, content: bytes) -> None:
        """Write a small object; it is durable on return."""
        self._do(lambda: obstore.put(self._store, path, content, use_multipart=False))
        self.flush(path)

    def remove(self, path: str) -> None:
        """Remove an object, or nothing when there is none."""
        self._if_there(lambda: obstore.delete(self._store, path))

    def upload(self, path: str, chunks: Iterable[bytes], size_limit: Callable[[], int]) -> bool:
        """Write an object of unknown length. `size_limit` is asked where a store bounds the number of parts.

        True when the store has confirmed the content by a checksum of its own; else it is to be read back.
        """
        self._put(path, chunks, part_size(size_limit()))
        return False

    def _put(self, path: str, chunks: Iterable[bytes], part: int) -> None:
        source = _Source(chunks)
        try:
            obstore.put(
                self._store,
                path,
                iter(source),
                use_multipart=True,
                chunk_size=part,
                max_concurrency=max(1, UPLOAD_MEMORY // part),
            )
        except (BaseError, OSError) as error:
            if error is source.failure:
                raise
            raise self._trouble(error) from error

    def stream(self, path: str, size: int) -> Iterator[memoryview]:
        """The bytes of an object, one range after the other, reading one ahead."""
        starts = range(0, size, _READ)

        def fetch(start: int) -> memoryview:
            length = min(_READ, size - start)
            read = self._do(lambda: obstore.get_range(self._store, path, start=start, length=length))
            if len(read) != length:
                raise StoreTrouble(f"the archive store {self._place} answered with less than was asked for")
            return memoryview(read)

        with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as reader:
            ahead = [reader.submit(fetch, start) for start in starts[:1]]
            for start in starts:
                current = ahead.pop().result()
                if start + _READ < size:
                    ahead.append(reader.submit(fetch, start + _READ))
                yield current

    def flush(self, path: str) -> None:
        """A service answers only when an object is durable."""

    def remove_rest(self, path: str) -> None:
        """Remove unfinished uploads of this object."""

    def sees_unfinished(self) -> bool:
        """Whether unfinished uploads can be found, and so removed."""
        return True

    def _if_there(self, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise self._trouble(error) from error

    def _do(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except (BaseError, OSError) as error:
            raise self._trouble(error) from error

    def _trouble(self, error: Exception) -> StorageProblem:
        words = f"the archive store {self._place} failed: {store_words(error)}"
        if says_no_space(str(error)):
            return NoSpace(f"{words}; make room in it")
        return StoreTrouble(words)


class LocalObjects(Objects):
    """Objects as files, renamed into place. The library leaves it to us to make them last."""

    def __init__(self, root: Path) -> None:
        super().__init__(LocalStore(root), str(root))
        self._root = root

    def list(self) -> "list[StoredObject]":
        """Unfinished uploads (`name#1`) are listed, too, though the library hides them."""
        unfinished = (self._unfinished(path) for path in self._root.glob("*/*/*#*"))
        return super().list() + [stored for stored in unfinished if stored is not None]

    def _unfinished(self, path: Path) -> StoredObject | None:
        """None when the upload has ended since it was listed."""
        return self._if_there(lambda: _stored(self._root, path))

    def write(self, path: str, content: bytes) -> None:
        self._do(lambda: write_stream(self._root / path, [content]))
        self.flush(path)

    def upload(self, path: str, chunks: Iterable[bytes], size_limit: Callable[[], int]) -> bool:
        """Written here: the library would hold many parts in memory, and let the disk wait until the end."""
        source = _Source(chunks)
        try:
            write_stream(self._root / path, source)
        except OSError as error:
            if error is source.failure:
                raise
            raise self._trouble(error) from error
        return False

    def flush(self, path: str) -> None:
        target = self._root / path
        self._do(lambda: fsync_path(target))
        for directory in target.relative_to(self._root).parents:
            here = self._root / directory
            self._do(lambda here=here: fsync_path(here))  # type: ignore[misc]

    def remove_rest(self, path: str) -> None:
        """Unfinished files beside this object, and the directories that it leaves empty."""
        target = self._root / path
        for leftover in target.parent.glob("*#*"):
            self._do(lambda leftover=leftover: leftover.unlink(missing_ok=True))  # type: ignore[misc]
        for directory in (target.parent, target.parent.parent):
            with suppress(OSError):
                directory.rmdir()


class _Source:
    """Tells the troubles of what is read from those of where it is written."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks
        self.failure: Exception | None = None

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._chunks
        except Exception as error:
            self.failure = error
            raise


def _beginning(chunks: Iterator[bytes]) -> bytes:
    read = b""
    for chunk in chunks:
        read += chunk
        if len(read) >= _SMALL:
            break
    return read


def _stored(root: Path, path: Path) -> StoredObject:
    found = path.stat()
    modified = datetime.fromtimestamp(found.st_mtime, UTC)
    return StoredObject(str(path.relative_to(root)), found.st_size, modified)


def part_size(size_limit: int) -> int:
    return max(_PART, math.ceil(size_limit / _MAX_PARTS))
