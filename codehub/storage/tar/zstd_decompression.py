"""Decompression of an archive: exactly one zstd frame (RFC 8878), in bounded memory."""

from collections.abc import Generator, Iterable, Iterator

import zstandard

from codehub.storage.errors import CorruptedArchive

_STEP = 256 << 10
_CHUNK = 1 << 20

# Four times the window of the level in use. A frame with a larger window would take more memory.
_MAX_WINDOW = 8 << 20

_MAGIC = b"\x28\xb5\x2f\xfd"
_LONGEST_HEADER = 13
_RLE, _RESERVED = 1, 3


def decompressed(chunks: Iterable[memoryview], unpacked: int) -> Iterator[bytes]:
    """Yield the content of one frame; raise CorruptedArchive if it is longer than `unpacked` bytes.

    The reader returns less than requested only at the end of the frame. So the last request is for
    one byte more than expected.
    """
    source = _FrameInput(chunks)
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
    reader = decompressor.stream_reader(source, read_size=_STEP)  # type: ignore[arg-type] # only reads
    try:
        while unpacked > 0:
            requested = _CHUNK if unpacked > _CHUNK else unpacked + 1
            chunk = reader.read(requested)
            if len(chunk) > unpacked:
                raise CorruptedArchive("the archive unpacks to more bytes than it declares")
            yield chunk
            if len(chunk) < requested:
                break
            unpacked -= requested
    except zstandard.ZstdError as error:
        raise CorruptedArchive(f"the archive cannot be decompressed: {error}") from error
    source.check_end()


class _FrameInput:
    """Input of the decompressor, which itself would accept a truncated frame or data after it.

    The end of the frame is found by the sizes of its blocks, before the decompressor reads them.
    """

    def __init__(self, chunks: Iterable[memoryview]) -> None:
        self._steps = (
            chunk[start : start + _STEP] for chunk in chunks for start in range(0, len(chunk), _STEP)
        )
        self._parts = _parts()
        self._left: int | None = next(self._parts)
        """Missing bytes of the current part; None after the last part."""
        self._header = b""

    def read(self, _size: int) -> bytes:
        step = bytes(next(self._steps, b""))
        self._follow(step)
        return step

    def check_end(self) -> None:
        self.read(_STEP)
        if self._left is not None:
            raise CorruptedArchive("the archive is cut off")

    def _follow(self, step: bytes) -> None:
        position = 0
        while position < len(step):
            if self._left is None:
                raise CorruptedArchive("there is data after the archive")
            length = min(self._left, len(step) - position)
            if self._left <= _LONGEST_HEADER:
                self._header += step[position : position + length]
            self._left -= length
            position += length
            while self._left == 0:
                self._left = self._next_part()

    def _next_part(self) -> int | None:
        header, self._header = self._header, b""
        try:
            return self._parts.send(header)
        except StopIteration:
            return None


def _parts() -> Generator[int, bytes, None]:
    """Generate the sizes of a frame's parts; the caller sends the content of each header."""
    start = yield len(_MAGIC) + 1
    if not start.startswith(_MAGIC):
        raise CorruptedArchive("the archive cannot be decompressed: it is not zstd")
    descriptor = start[-1]
    is_single, has_checksum = descriptor >> 5 & 1, descriptor >> 2 & 1
    content_size = (is_single, 2, 4, 8)[descriptor >> 6]
    dictionary = (0, 1, 2, 4)[descriptor & 3]
    yield 1 - is_single + dictionary + content_size
    is_last = False
    while not is_last:
        block = int.from_bytes((yield 3), "little")
        is_last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
        if kind == _RESERVED:
            raise CorruptedArchive("the archive cannot be decompressed: it has a block of an unknown type")
        yield 1 if kind == _RLE else size
    if has_checksum:
        yield 4
