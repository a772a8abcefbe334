"""Reader of a workspace's output, which the keeper writes into two files (see `output_files`).

The keeper renames a full file and begins another. A reader keeps its file open, so it reads each one
to its end, and then finds the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator
from io import FileIO
from pathlib import Path
from threading import Lock

from codehub.runtimes.process.state_directory import LOG, OLDER_LOG

PIECE_BYTES = 64 << 10
SKIPPED = b"[codehub: output may be missing here, because this reader was too slow]\n"
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 0.4


@contextlib.asynccontextmanager
async def open_logs(
    directory: Path, lines: int, until: asyncio.Event
) -> AsyncIterator[AsyncGenerator[bytes, None]]:
    """Yield the last lines of the output, then what follows until `until` is set."""
    follows = not until.is_set()
    reader = LogReader(directory)
    try:
        present = await asyncio.to_thread(reader.start, lines)
        pieces = _follow(reader, until) if follows else _read(reader, present)
        async with contextlib.aclosing(pieces):
            yield pieces
    finally:
        await asyncio.to_thread(reader.close)


async def _read(reader: LogReader, count: int) -> AsyncGenerator[bytes, None]:
    """Yield so many bytes: a workspace may write as fast as they are read."""
    while count > 0 and (data := await asyncio.to_thread(reader.read)):
        yield data[:count]
        count -= len(data)


async def _follow(reader: LogReader, until: asyncio.Event) -> AsyncGenerator[bytes, None]:
    pause = _FIRST_PAUSE_SECONDS
    while True:
        is_last = until.is_set()
        if data := await asyncio.to_thread(reader.read):
            yield data
            pause = _FIRST_PAUSE_SECONDS
        elif is_last:
            return
        else:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(until.wait(), pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


class LogReader:
    """Reader of both files as one stream. A gap between two files is declared by a line."""

    def __init__(self, directory: Path) -> None:
        self._newest = directory / LOG
        self._older = directory / OLDER_LOG
        self._file: FileIO | None = None
        self._ends_in_newline = True
        self._lock = Lock()
        """`close` waits for a read in another thread: its descriptor must not be reused meanwhile."""

    def start(self, lines: int) -> int:
        """Go to the beginning of the last lines; return how many bytes follow there."""
        with self._lock:
            newest, older = _open(self._newest), _open(self._older)
            if newest is not None and older is not None and _is_same(newest, older):  # being renamed
                older.close()
                older = None
            self._file = newest
            present = _size(newest)
            missing = lines if newest is None else _seek_back(newest, present, lines)
            if older is not None and missing is not None:
                missing += not _ends_in_newline(older)
            if older is None or not missing:
                _close(older)
                return present - _position(newest)
            present += _size(older)
            _seek_back(older, _size(older), missing)
            self._file = older
            _close(newest)
            return present - _position(older)

    def read(self) -> bytes:
        """Return a piece of output, or nothing while there is none."""
        with self._lock:
            while True:
                is_newest = self._is_newest()
                # What was written before the file was replaced is there by now.
                if self._file is not None and (data := self._file.read(PIECE_BYTES)):
                    self._ends_in_newline = data.endswith(b"\n")
                    return data
                if is_newest:
                    return b""
                following, is_complete = self._open_next()
                if following is None:
                    return b""
                is_gap = self._file is not None and not is_complete
                _close(self._file)
                self._file = following
                if is_gap:
                    return SKIPPED if self._ends_in_newline else b"\n" + SKIPPED

    def close(self) -> None:
        with self._lock:
            _close(self._file)
            self._file = None

    def _is_newest(self) -> bool:
        """Return whether the open file is the newest one, or the newest one is just being made."""
        try:
            found = self._newest.stat()
        except FileNotFoundError:
            return True
        return self._file is not None and os.path.samestat(os.fstat(self._file.fileno()), found)

    def _open_next(self) -> tuple[FileIO | None, bool]:
        """Return the file behind the open one, and whether none is missing between them."""
        newest, older = _open(self._newest), _open(self._older)
        if older is None:
            return newest, self._file is None
        if newest is None or _is_same(newest, older):
            older.close()
            return newest, True
        if self._file is not None and _is_same(self._file, older):
            older.close()
            return newest, True
        newest.close()
        return older, False


def _open(path: Path) -> FileIO | None:
    try:
        return path.open("rb", buffering=0)
    except FileNotFoundError:
        return None


def _close(file: FileIO | None) -> None:
    if file is not None:
        file.close()


def _size(file: FileIO | None) -> int:
    return 0 if file is None else os.fstat(file.fileno()).st_size


def _position(file: FileIO | None) -> int:
    return 0 if file is None else file.tell()


def _is_same(one: FileIO, other: FileIO) -> bool:
    return os.path.sameopenfile(one.fileno(), other.fileno())


def _ends_in_newline(file: FileIO) -> bool:
    return _byte_before(file, _size(file)) == b"\n"


def _byte_before(file: FileIO, position: int) -> bytes:
    return os.pread(file.fileno(), 1, position - 1) if position else b"\n"


def _seek_back(file: FileIO, size: int, lines: int) -> int | None:
    """Go to the beginning of the last lines of a file; return how many it lacks, if it has too few.

    What ends in no newline is a line as well. What was written behind `size` does not count.
    """
    position = size
    left = lines + 1 if size and _byte_before(file, size) == b"\n" else lines
    while position > 0:
        start = max(0, position - PIECE_BYTES)
        piece = os.pread(file.fileno(), position - start, start)
        end = len(piece)
        while (end := piece.rfind(b"\n", 0, end)) >= 0:
            left -= 1
            if left == 0:
                file.seek(start + end + 1)
                return None
        position = start
    file.seek(0)
    return left - 1 if size else lines
