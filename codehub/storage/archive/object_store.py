"""Plain objects behind one interface: a local directory or an S3-compatible service."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, TypeVar

from codehub.storage.archive.error_text import store_error_message
from codehub.storage.errors import NoSpace, StorageProblem, StoreTrouble, reports_full_disk

SMALL_BYTES = 64 << 10
_READ = 8 << 20
_PART = 6 << 20
_MAX_PARTS = 9000

T = TypeVar("T")


@dataclass(frozen=True)
class StoredObject:
    path: str
    size: int
    last_modified: datetime


class ObjectStore(ABC):
    """ObjectStore of one store. A missing one is None; trouble is StoreTrouble, a full disk NoSpace."""

    errors: ClassVar[tuple[type[Exception], ...]] = (OSError,)
    """What the calls of this store raise."""

    def __init__(self, place: str) -> None:
        self._place = place

    @abstractmethod
    def read(self, path: str) -> bytes | None:
        """A small object, or the beginning of one that is not."""

    @abstractmethod
    def size(self, path: str) -> int | None: ...

    @abstractmethod
    def list(self) -> "list[StoredObject]":
        """All objects, and unfinished uploads as `name#id`."""

    @abstractmethod
    def write(self, path: str, content: bytes) -> None:
        """Write a small object; it is durable on return."""

    @abstractmethod
    def create(self, path: str, content: bytes) -> bool:
        """Write a small object in one conditional step; False when there is one already."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove an object, or nothing when there is none."""

    @abstractmethod
    def upload(self, path: str, chunks: Iterable[bytes], size_limit: Callable[[], int]) -> bool:
        """Write an object of unknown length. `size_limit` is asked where a store bounds the number of parts.

        True when the store has confirmed the content by a checksum of its own; else it is to be read back.
        """

    @abstractmethod
    def flush(self, path: str) -> None:
        """Return when the object is durable."""

    @abstractmethod
    def remove_rest(self, path: str) -> None:
        """Remove unfinished uploads of this object."""

    @abstractmethod
    def sees_unfinished(self) -> bool:
        """Whether unfinished uploads can be found, and so removed."""

    @abstractmethod
    def _range(self, path: str, start: int, length: int) -> memoryview: ...

    def stream(self, path: str, size: int) -> Iterator[memoryview]:
        """The bytes of an object, one range after the other, reading one ahead."""
        starts = range(0, size, _READ)

        def fetch(start: int) -> memoryview:
            length = min(_READ, size - start)
            read = self._do(lambda: self._range(path, start, length))
            if len(read) != length:
                raise StoreTrouble(f"the archive store {self._place} answered with less than was asked for")
            return read

        with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as reader:
            ahead = [reader.submit(fetch, start) for start in starts[:1]]
            for start in starts:
                current = ahead.pop().result()
                if start + _READ < size:
                    ahead.append(reader.submit(fetch, start + _READ))
                yield current

    def _if_there(self, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except FileNotFoundError:
            return None
        except self.errors as error:
            raise self._trouble(error) from error

    def _do(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except self.errors as error:
            raise self._trouble(error) from error

    def _write_from(self, chunks: Iterable[bytes], write: Callable[[Iterable[bytes]], object]) -> None:
        """Write a stream. What its source raises passes; what the store raises becomes trouble."""
        source = _Source(chunks)
        try:
            write(source)
        except self.errors as error:
            if error is source.failure:
                raise
            raise self._trouble(error) from error

    def _trouble(self, error: Exception) -> StorageProblem:
        words = f"the archive store {self._place} failed: {store_error_message(error)}"
        if reports_full_disk(str(error)):
            return NoSpace(f"{words}; make room in it")
        return StoreTrouble(words)


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


def part_size(size_limit: int) -> int:
    return max(_PART, math.ceil(size_limit / _MAX_PARTS))
