"""A tar stream, cut into its entries: bytes go in, approved bytes come out, anything doubtful raises."""

from abc import ABC, abstractmethod

from codehub.storage.errors import CorruptedArchive
from codehub.storage.tar.header import BLOCK, Entry, UnsupportedTar, read_entry

_ZEROS = bytes(BLOCK)
_BRIDGE = 8 * BLOCK

NOWHERE, FIRST = 0, 1

Piece = tuple[int, memoryview]
"""Bytes, and where they go: a bit for each reader."""


class TarStream(ABC):
    """What is common to reading an archive that is made and one that comes back."""

    checksums = True
    end_goes = FIRST

    def __init__(self) -> None:
        self._carry = b""
        self._zero_blocks = 0
        self._content_left = 0
        self._content_goes = NOWHERE
        self.entries = 0
        self.bytes = 0

    def feed(self, chunk: bytes) -> list[Piece]:
        """Check the next bytes of the stream; what may go on now."""
        if not 0 < len(self._carry) <= _BRIDGE:
            return self._feed(self._carry + chunk if self._carry else chunk, 0)
        # The headers that a chunk's end has cut are put together with few bytes of the next, not with all.
        approved = self._feed(self._carry + chunk[:_BRIDGE], 0)
        crossed = min(_BRIDGE, len(chunk)) - len(self._carry)
        if crossed < 0:
            return approved + self._feed(self._carry + chunk[_BRIDGE:], 0)
        return approved + self._feed(chunk, crossed)

    def _feed(self, data: bytes, position: int) -> list[Piece]:
        ranges: list[tuple[int, int, int]] = []
        begun, goes = position, NOWHERE
        while position < len(data):
            step = self._step(data, position)
            if step is None:
                break
            length, to = step
            if to != goes:
                ranges.append((goes, begun, position))
                begun, goes = position, to
            position += length
        ranges.append((goes, begun, position))
        self._carry = data[position:]
        view = memoryview(self._amended(data))
        approved = [(goes, view[begin:end]) for goes, begin, end in ranges if goes]
        self.bytes += sum(len(piece) for _, piece in approved)
        return approved

    def finish(self) -> None:
        """The stream is over: it must have said so itself."""
        if self._zero_blocks < 2 or self._carry or self._content_left:
            raise CorruptedArchive("the tar stream is cut off")

    @abstractmethod
    def _admit(self, entry: Entry, position: int) -> int:
        """Count an entry that stands at this position, or refuse it; where it goes."""

    def _amended(self, data: bytes) -> bytes:
        """What is to go on instead of these bytes; as many."""
        return data

    @abstractmethod
    def _skim(self, data: bytes, position: int) -> int:
        """Where entries end, headers and content, that need no closer look and all go to `_content_goes`.

        Behind the data, when the content of the last is not complete yet.
        """

    def _step(self, data: bytes, position: int) -> tuple[int, int] | None:
        """(bytes of the next piece, where it goes), or None when it is not complete yet."""
        if self._content_left:
            length = min(self._content_left, len(data) - position)
            self._content_left -= length
            return length, self._content_goes
        if len(data) - position < BLOCK:
            return None
        if self._zero_blocks or data.startswith(_ZEROS, position):
            return self._end(data, position), self.end_goes
        end = self._skim(data, position)
        if end > position:
            self._content_left = max(0, end - len(data))
            return end - position - self._content_left, self._content_goes
        entry = read_entry(data, position, checksums=self.checksums)
        if entry is None:
            return None
        self._content_goes = self._admit(entry, position)
        length = min(entry.header_length + entry.padded, len(data) - position)
        self._content_left = entry.header_length + entry.padded - length
        return length, self._content_goes

    def _end(self, data: bytes, position: int) -> int:
        """After the first empty block nothing but emptiness may follow."""
        rest = data[position:]
        blocks = len(rest) // BLOCK
        if rest.count(0) != len(rest):
            raise UnsupportedTar("there is data after the end of the archive")
        self._zero_blocks += blocks
        return blocks * BLOCK
