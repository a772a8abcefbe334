"""Incremental parser of a tar stream: it returns the bytes it approves, and rejects all else."""

from abc import ABC, abstractmethod

from codehub.storage.errors import CorruptedArchive
from codehub.storage.tar.header import BLOCK, Entry, UnsupportedTar, read_entry

_ZEROS = bytes(BLOCK)
_BRIDGE = 8 * BLOCK

NO_READER, FIRST_READER = 0, 1

Piece = tuple[int, memoryview]
"""Bytes and their readers, as one bit per reader."""


class IncrementalTarParser(ABC):
    """Base of the parsers for archives that are made and for archives that are restored."""

    checksums = True
    end_readers = FIRST_READER

    def __init__(self) -> None:
        self._carry = b""
        self._zero_blocks = 0
        self._content_left = 0
        self._content_readers = NO_READER
        self.entries = 0
        self.bytes = 0

    def feed(self, chunk: bytes) -> list[Piece]:
        """Check the next bytes of the stream, and return what may be passed on."""
        if not 0 < len(self._carry) <= _BRIDGE:
            return self._feed(self._carry + chunk if self._carry else chunk, 0)
        # Headers cut by a chunk's end are joined with a few bytes of the next, not with all of it.
        approved = self._feed(self._carry + chunk[:_BRIDGE], 0)
        crossed = min(_BRIDGE, len(chunk)) - len(self._carry)
        if crossed < 0:
            return approved + self._feed(self._carry + chunk[_BRIDGE:], 0)
        return approved + self._feed(chunk, crossed)

    def _feed(self, data: bytes, position: int) -> list[Piece]:
        ranges: list[tuple[int, int, int]] = []
        start, readers = position, NO_READER
        while position < len(data):
            step = self._step(data, position)
            if step is None:
                break
            length, next_readers = step
            if next_readers != readers:
                ranges.append((readers, start, position))
                start, readers = position, next_readers
            position += length
        ranges.append((readers, start, position))
        self._carry = data[position:]
        view = memoryview(self._rewritten_bytes(data))
        approved = [(readers, view[begin:end]) for readers, begin, end in ranges if readers]
        self.bytes += sum(len(piece) for _, piece in approved)
        return approved

    def finish(self) -> None:
        """Raise CorruptedArchive unless the end marker has been read."""
        if self._zero_blocks < 2 or self._carry or self._content_left:
            raise CorruptedArchive("the tar stream is cut off")

    @abstractmethod
    def _accept_entry(self, entry: Entry, position: int) -> int:
        """Count the entry at this position, or reject it. Return its readers."""

    def _rewritten_bytes(self, data: bytes) -> bytes:
        """Return what to pass on instead of these bytes, with the same length."""
        return data

    @abstractmethod
    def _skip_plain_files(self, data: bytes, position: int) -> int:
        """Skip simple entries that all go to `_content_readers`. Return the position behind them.

        The position is beyond the data if the content of the last one is incomplete.
        """

    def _step(self, data: bytes, position: int) -> tuple[int, int] | None:
        """Return (length of the next piece, its readers), or None if it is incomplete."""
        if self._content_left:
            length = min(self._content_left, len(data) - position)
            self._content_left -= length
            return length, self._content_readers
        if len(data) - position < BLOCK:
            return None
        if self._zero_blocks or data.startswith(_ZEROS, position):
            return self._end(data, position), self.end_readers
        end = self._skip_plain_files(data, position)
        if end > position:
            self._content_left = max(0, end - len(data))
            return end - position - self._content_left, self._content_readers
        entry = read_entry(data, position, checksums=self.checksums)
        if entry is None:
            return None
        self._content_readers = self._accept_entry(entry, position)
        length = min(entry.header_length + entry.padded, len(data) - position)
        self._content_left = entry.header_length + entry.padded - length
        return length, self._content_readers

    def _end(self, data: bytes, position: int) -> int:
        """Check that only zeros follow the first empty block."""
        rest = data[position:]
        blocks = len(rest) // BLOCK
        if rest.count(0) != len(rest):
            raise UnsupportedTar("there is data after the end of the archive")
        self._zero_blocks += blocks
        return blocks * BLOCK
