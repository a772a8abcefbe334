"""Interface of an object store: a local directory or an S3-compatible service."""

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
    """Object store. A missing object is None; failures raise StoreTrouble, a full disk NoSpace."""

    errors: ClassVar[tuple[type[Exception], ...]] = (OSError,)
    """Exceptions that the calls of this store raise."""

    def __init__(self, name: str) -> None:
        self._name = name

    @abstractmethod
    def read(self, path: str) -> bytes | None:
        """Return a small object, or the first SMALL_BYTES of a larger one."""

    @abstractmethod
    def size(self, path: str) -> int | None:
        """Return the size of an object, or None if there is none."""

    @abstractmethod
    def list(self) -> "list[StoredObject]":
        """Return all objects, and unfinished uploads as `name#id`."""

    @abstractmethod
    def write(self, path: str, content: bytes) -> None:
        """Write a small object durably."""

    @abstractmethod
    def create(self, path: str, content: bytes) -> bool:
        """Write a small object unless it exists, atomically. Return False if it existed."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove an object, if it exists."""

    @abstractmethod
    def upload(self, path: str, chunks: Iterable[bytes], size_limit: Callable[[], int]) -> bool:
        """Write an object of unknown length.

        A store that limits the number of parts calls `size_limit`.

        Return True if the store has confirmed the content by its own checksum. Otherwise the caller
        has to read the object back.
        """

    @abstractmethod
    def flush(self, path: str) -> None:
        """Return when the object is durable."""

    @abstractmethod
    def remove_unfinished(self, path: str) -> None:
        """Remove unfinished uploads of this object."""

    @abstractmethod
    def can_list_unfinished(self) -> bool:
        """Return whether unfinished uploads can be found, and so removed."""

    @abstractmethod
    def _range(self, path: str, start: int, length: int) -> memoryview: ...

    def stream(self, path: str, size: int) -> Iterator[memoryview]:
        """Yield the bytes of an object in ranges, reading one range ahead."""
        starts = range(0, size, _READ)

        def fetch(start: int) -> memoryview:
            return self.read_range(path, start, min(_READ, size - start))

        with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as reader:
            ahead = [reader.submit(fetch, start) for start in starts[:1]]
            for start in starts:
                current = ahead.pop().result()
                if start + _READ < size:
                    ahead.append(reader.submit(fetch, start + _READ))
                yield current

    def read_range(self, path: str, start: int, length: int) -> memoryview:
        """Return exactly these bytes of an object. One that is missing or shorter is StoreTrouble."""
        read = self._do(lambda: self._range(path, start, length))
        if len(read) != length:
            raise StoreTrouble(f"the archive store {self._name} returned fewer bytes than requested")
        return read

    def _if_exists(self, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except FileNotFoundError:
            return None
        except self.errors as error:
            raise self._problem(error) from error

    def _do(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except self.errors as error:
            raise self._problem(error) from error

    def _write_from(self, chunks: Iterable[bytes], write: Callable[[Iterable[bytes]], object]) -> None:
        """Write a stream. Convert exceptions of the store, but not those of the stream's source."""
        source = _RecordingIterable(chunks)
        try:
            write(source)
        except self.errors as error:
            if error is source.failure:
                raise
            raise self._problem(error) from error

    def _problem(self, error: Exception) -> StorageProblem:
        message = f"the archive store {self._name} failed: {store_error_message(error)}"
        if reports_full_disk(str(error)):
            return NoSpace(f"{message}; make room in it")
        return StoreTrouble(message)


class _RecordingIterable:
    """Iterable that records its source's exception, to distinguish it from one of the store."""

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
    """Return the size of the parts of an upload that may become this large."""
    return max(_PART, math.ceil(size_limit / _MAX_PARTS))
