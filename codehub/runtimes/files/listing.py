"""Lists of files, and searches, of bounded size and time. Standard library only (see `agent`)."""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from codehub.runtimes.files.channel import Batch, Channel
from codehub.runtimes.files.names import LONGEST_PATH
from codehub.runtimes.files.paths import FileTree, Place, facts_at, is_unreachable, kind_of
from codehub.runtimes.files.protocol import (
    MAX_DEPTH,
    MAX_ENTRIES,
    MAX_MATCHES,
    SEARCH_SECONDS,
    FileKind,
    FileRefused,
    ListRequest,
    SearchMatch,
    SearchRequest,
)

_MAX_SCANNED = 2_000_000
"""Names that one list or search reads."""
_NAMES_AT_ONCE = 1000
_MAX_SEARCHED_FILE = 16 << 20
_MAX_TEXT = 300
_BINARY_PREFIX = 8192


@dataclass(frozen=True)
class Visit:
    """An entry of a directory that is walked."""

    place: Place
    path: bytes
    facts: os.stat_result

    @property
    def kind(self) -> FileKind:
        return kind_of(self.facts)


class Scanner:
    """Reader of directories, which counts names and keeps the client waiting."""

    def __init__(self, tree: FileTree, channel: Channel, limit: int | None = None) -> None:
        self.tree = tree
        self._channel = channel
        self._limit = limit
        self._count = 0

    @property
    def is_exhausted(self) -> bool:
        return self._limit is not None and self._count >= self._limit

    def names(self, directory: int) -> Iterator[bytes]:
        with os.scandir(directory) as entries:
            for entry in entries:
                if self.is_exhausted:
                    return
                self._count += 1
                if self._count % _NAMES_AT_ONCE == 0:
                    self._channel.send_alive()
                yield os.fsencode(entry.name)

    def walk(self, top: int, depth: int, on_error: Callable[[bytes, OSError], None]) -> Iterator[Visit]:
        """Yield what is below a directory, a directory before its entries, in no order.

        Symbolic links are not followed. `on_error` learns which directories cannot be read.
        """
        yield from self._walk(top, b"", depth, on_error)

    def _walk(
        self, directory: int, prefix: bytes, depth: int, on_error: Callable[[bytes, OSError], None]
    ) -> Iterator[Visit]:
        for name in self.names(directory):
            visit = self.visit(directory, name, prefix)
            if visit is None:
                continue
            yield visit
            if visit.kind is FileKind.DIRECTORY:
                if depth <= 1:
                    on_error(
                        visit.path, OSError(errno.ENAMETOOLONG, "it has too many directories in each other")
                    )
                    continue
                with self.opened(directory, name, visit.path, on_error) as below:
                    if below is not None:
                        yield from self._walk(below, visit.path + b"/", depth - 1, on_error)

    def visit(self, directory: int, name: bytes, prefix: bytes) -> Visit | None:
        """Return the facts of a name, or None if it is gone or its path too long to be used."""
        place = Place(directory, name)
        facts = place.lstat_or_none()
        path = prefix + name
        return None if facts is None or len(path) > LONGEST_PATH else Visit(place, path, facts)

    @contextlib.contextmanager
    def opened(
        self, parent: int, name: bytes, path: bytes, on_error: Callable[[bytes, OSError], None]
    ) -> Iterator[int | None]:
        """Open a directory, or yield None if it is gone, or (see `on_error`) cannot be opened."""
        descriptor: int | None = None
        try:
            descriptor = self.tree.open_directory(parent, name)
        except FileRefused:  # /proc
            pass
        except OSError as error:
            if not is_unreachable(error):
                on_error(path, error)
        try:
            yield descriptor
        finally:
            if descriptor is not None:
                os.close(descriptor)


def skip(_path: bytes, _error: OSError) -> None:
    """Leave out what cannot be read."""


def list_files(tree: FileTree, request: ListRequest, channel: Channel) -> None:
    """Send the facts of a path, then the entries below it in the order of their names."""
    limit = max(0, min(request.limit, MAX_ENTRIES))
    batch = Batch(channel, "entries")
    with tree.resolve(request.path, follow=False) as place:
        batch.add(facts_at(place))
    lister = _Lister(Scanner(tree, channel, _MAX_SCANNED), batch, limit)
    if request.depth > 0:
        with tree.resolve(request.path, follow=True) as place, contextlib.suppress(FileNotFoundError):
            if kind_of(place.lstat()) is FileKind.DIRECTORY:
                directory = tree.open_directory(place.parent, place.name)
                try:
                    lister.add_entries(directory, b"", min(request.depth, MAX_DEPTH))
                finally:
                    os.close(directory)
    batch.end(truncated=lister.is_truncated)


class _Lister:
    def __init__(self, scanner: Scanner, batch: Batch, limit: int) -> None:
        self._scanner = scanner
        self._batch = batch
        self._left = limit
        self.is_truncated = False

    def add_entries(self, directory: int, prefix: bytes, depth: int) -> None:
        """Add entries. Of millions of names only those that fit in the list are in memory."""
        for name in heapq.nsmallest(self._left + 1, self._scanner.names(directory)):
            if self._left == 0:
                self.is_truncated = True
                return
            self._add(directory, name, prefix, depth)
        self.is_truncated = self.is_truncated or self._scanner.is_exhausted

    def _add(self, directory: int, name: bytes, prefix: bytes, depth: int) -> None:
        path = prefix + name
        try:
            facts = facts_at(Place(directory, name), path)
        except FileNotFoundError:
            return
        if len(path) > LONGEST_PATH:
            self.is_truncated = True
            return
        self._batch.add(facts)
        self._left -= 1
        if facts.kind is FileKind.DIRECTORY and depth > 1:
            with self._scanner.opened(directory, name, path, skip) as below:
                if below is not None:
                    self.add_entries(below, path + b"/", depth - 1)


def search(tree: FileTree, request: SearchRequest, channel: Channel) -> None:
    """Send the entries whose name, or the lines of files that contain the query."""
    batch = Batch(channel, "matches")
    limit = max(1, min(request.limit, MAX_MATCHES))
    deadline = time.monotonic() + SEARCH_SECONDS
    scanner = Scanner(tree, channel, _MAX_SCANNED)
    is_complete = True

    def leave_out(_path: bytes, _error: OSError) -> None:
        nonlocal is_complete
        is_complete = False

    find = _matching_lines if request.contents else _matching_name
    with tree.directory(request.path) as top:
        for visit in scanner.walk(top, MAX_DEPTH, leave_out):
            channel.send_alive()
            for match in find(visit, request.query):
                if batch.count == limit:
                    batch.end(truncated=True)
                    return
                batch.add(match)
            if time.monotonic() > deadline:
                is_complete = False
                break
    batch.end(truncated=not is_complete or scanner.is_exhausted)


def _matching_name(visit: Visit, query: bytes) -> Iterator[SearchMatch]:
    if _lower(query) in _lower(visit.place.name):
        yield SearchMatch(visit.path, visit.kind)


def _lower(name: bytes) -> str:
    return name.decode(errors="surrogateescape").lower()


def _matching_lines(visit: Visit, query: bytes) -> Iterator[SearchMatch]:
    """Yield the lines of a text file that contain the query."""
    content = _text_of(visit)
    position, line, counted = content.find(query), 1, 0
    while position >= 0:
        line += content.count(b"\n", counted, position)
        counted = position
        start = content.rfind(b"\n", 0, position) + 1
        end = content.find(b"\n", position)
        end = len(content) if end < 0 else end
        first = start if position - start <= _MAX_TEXT // 2 else position - _MAX_TEXT // 2
        yield SearchMatch(visit.path, visit.kind, line, content[first : min(end, first + _MAX_TEXT)])
        position = content.find(query, end)


def _text_of(visit: Visit) -> bytes:
    """Return the content of a file, or nothing if it is too large, binary, or not to be read."""
    if visit.kind is not FileKind.FILE or visit.facts.st_size > _MAX_SEARCHED_FILE:
        return b""
    try:
        descriptor = visit.place.open_file()
    except (OSError, FileRefused):
        return b""
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        content = _read(file.fileno(), min(visit.facts.st_size, _MAX_SEARCHED_FILE))
    return b"" if b"\0" in content[:_BINARY_PREFIX] else content


def _read(descriptor: int, count: int) -> bytes:
    pieces = []
    while count > 0 and (piece := os.read(descriptor, count)):
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)
