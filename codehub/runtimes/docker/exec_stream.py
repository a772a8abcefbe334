"""Format of the stream of a command without a terminal: frames, each with the name of its stream.

Standard library only (see `engine_http`).
"""

from __future__ import annotations

from collections.abc import Iterator

from codehub.runtimes.exec_directory import STDERR, STDOUT

_HEADER_BYTES = 8
_STDOUT = 1


class FrameDecoder:
    """Decoder of frames that arrive in pieces of any size."""

    def __init__(self) -> None:
        self._header = b""
        self._stream = STDOUT
        self._rest = 0

    def decode(self, data: bytes) -> Iterator[tuple[str, memoryview]]:
        """Yield the content with its stream."""
        left = memoryview(data)
        while left:
            if self._rest == 0:
                left = self._read_header(left)
                continue
            content, left = left[: self._rest], left[self._rest :]
            self._rest -= len(content)
            yield self._stream, content

    def _read_header(self, data: memoryview) -> memoryview:
        missing = _HEADER_BYTES - len(self._header)
        self._header += bytes(data[:missing])
        if len(self._header) == _HEADER_BYTES:
            self._stream = STDOUT if self._header[0] == _STDOUT else STDERR
            self._rest = int.from_bytes(self._header[4:], "big")
            self._header = b""
        return data[missing:]
