"""Framing of message bodies (RFC 9112, 6 and 7). Bodies are relayed unchanged."""

import re
from typing import Final, Protocol

MAX_LINE: Final = 8 * 1024
MAX_TRAILERS: Final = 32 * 1024
LINES: Final = 16
"""How many lines of a chunked body one call reads (ADR 0024): eight chunks, which take about 15 us."""
_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})(?:[ \t]*;[\t -~\x80-\xff]*)?\r\n")
# Fields for framing, routing, authentication or the sender's name may not be trailers (RFC 9110, 6.5.1). A
# server that merges trailers into the fields (as uvicorn does) would believe that the gateway sent them.
_FORBIDDEN_TRAILER = re.compile(
    rb"(?i:content-|transfer-|host:|connection:|keep-alive:|proxy|te:|trailer:|upgrade:|expect:|cookie:|set-cookie"
    rb"|authorization:|origin:|sec-|forwarded:|x[-_]forwarded|x[-_]codehub|x-real-ip:|x-original-url:|x-rewrite-url:|alt-svc:"
    rb"|clear-site-data:|service-worker-allowed:)"
)
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*\r\n")


class FramingError(Exception):
    """Body that violates its framing."""


class Body(Protocol):
    """Counter of the bytes of one body."""

    done: bool

    def feed(self, data: bytes | memoryview) -> int:
        """Return the number of bytes of `data` that belong to this body.

        If the body is not done and bytes are left, one call may not read more: feed the rest later.
        """


class LengthBody:
    """A body with a Content-Length."""

    __slots__ = ("done", "left")

    def __init__(self, length: int) -> None:
        self.left = length
        self.done = length == 0

    def feed(self, data: bytes | memoryview) -> int:
        taken = min(self.left, len(data))
        self.left -= taken
        self.done = self.left == 0
        return taken


class UntilCloseBody:
    """A response body that ends with its connection."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = False

    def feed(self, data: bytes | memoryview) -> int:
        return len(data)


class ChunkedBody:
    """A body with the chunked transfer coding (RFC 9112, 7.1)."""

    __slots__ = ("_left", "_line", "_state", "_trailers", "done")

    _SIZE_LINE, _DATA, _DATA_END, _TRAILERS = range(4)

    def __init__(self) -> None:
        self.done = False
        self._state = self._SIZE_LINE
        self._left = 0
        self._line = b""
        self._trailers = 0

    def feed(self, data: bytes | memoryview) -> int:
        data = bytes(data)
        position, size, lines = 0, len(data), LINES
        while position < size and lines and not self.done:
            if self._state == self._DATA:
                taken = min(self._left, size - position)
                self._left -= taken
                position += taken
                if not self._left:
                    self._state = self._DATA_END
            else:
                position = self._take_line(data, position)
                lines -= 1
        return position

    def _take_line(self, data: bytes, start: int) -> int:
        newline = data.find(b"\n", start)
        end = len(data) if newline < 0 else newline + 1
        self._line += data[start:end]
        if len(self._line) > MAX_LINE:
            raise FramingError("a line of the chunked body is too long")
        if newline >= 0:
            line, self._line = self._line, b""
            self._on_line(line)
        return end

    def _on_line(self, line: bytes) -> None:
        if self._state == self._SIZE_LINE:
            match = _SIZE.fullmatch(line)
            if match is None:
                raise FramingError("not a chunk size")
            self._left = int(match[1], 16)
            self._state = self._DATA if self._left else self._TRAILERS
        elif self._state == self._DATA_END:
            if line != b"\r\n":
                raise FramingError("a chunk is longer than its size")
            self._state = self._SIZE_LINE
        elif line == b"\r\n":
            self.done = True
        else:
            self._on_trailer(line)

    def _on_trailer(self, line: bytes) -> None:
        self._trailers += len(line)
        if self._trailers > MAX_TRAILERS or not _TRAILER.fullmatch(line):
            raise FramingError("not a valid trailer")
        if _FORBIDDEN_TRAILER.match(line):
            raise FramingError("a field that is not allowed in a trailer")


def request_body(length: int, chunked: bool) -> Body:
    return ChunkedBody() if chunked else LengthBody(length)
