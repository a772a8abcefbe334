"""Reader of WebSocket frames (RFC 6455, 5.2) beside the relay, which does not change them."""

from collections.abc import Callable
from typing import Final

PIECE: Final = 1 << 10
"""The size of the pieces in which a payload is read."""
BUDGET: Final = PIECE
"""How much one call reads (ADR 0024): bytes of payload, plus FRAME_COST for each frame."""
FRAME_COST: Final = 128
_LONGEST_HEADER: Final = 14
_FIRST_CONTROL_OPCODE: Final = 8

OnData = Callable[[bytes, bool], None]


class FrameReader:
    """Parser that calls back with the payload of each data frame, in pieces, up to `capture` bytes.

    The second argument is true for the first piece of a frame.
    """

    __slots__ = (
        "_begins", "_capture", "_control", "_header", "_left", "_mask", "_on_data", "_payload", "_room",
    )  # fmt: skip

    def __init__(self, on_data: OnData, capture: int) -> None:
        self._on_data = on_data
        self._capture = capture
        self._header = b""
        self._payload = bytearray()
        """The current piece."""
        self._mask = b""
        self._left = 0
        """Bytes of the frame that have not arrived yet."""
        self._room = 0
        """How many of them to capture."""
        self._begins = True
        self._control = False

    def feed(self, data: bytes) -> int:
        """Read as much as one call may, and return the number of bytes that were read.

        Nearly every piece of a stream is one whole frame with a header of 2 or 6 bytes.
        """
        if not self._left and not self._header and len(data) > 1:
            length = data[1]
            begin = 2
            if length > 127:
                length -= 128
                begin = 6
            if length < 126 and len(data) == begin + length:
                if data[0] & 0x08 == 0:
                    self._on_data(self._captured(data, begin) if self._capture else b"", True)
                return len(data)
        return self._feed(data)

    def _captured(self, data: bytes, begin: int) -> bytes:
        payload = data[begin : begin + self._capture]
        return _unmasked(payload, data[2:6]) if begin == 6 else payload

    def _feed(self, data: bytes) -> int:
        position, size, budget = 0, len(data), BUDGET
        while position < size and budget > 0:
            if not self._left:
                position = self._take_header(data, position)
                budget -= FRAME_COST
                if self._header:
                    return size
            taken = min(self._left, size - position)
            if self._room:
                taken = min(taken, self._room, PIECE - len(self._payload))
                self._payload += data[position : position + taken]
                self._room -= taken
                budget -= taken
            self._left -= taken
            position += taken
            if not self._left or (not self._room and self._payload) or len(self._payload) == PIECE:
                self._complete_piece()
        return position

    def _take_header(self, data: bytes, position: int) -> int:
        held = len(self._header)
        header = self._header + data[position : position + _LONGEST_HEADER]
        length = _header_length(header)
        if len(header) < length:
            self._header = header
            return len(data)
        self._header = b""
        self._control = header[0] & 0x0F >= _FIRST_CONTROL_OPCODE
        size = header[1] & 0x7F
        if size == 126:
            size = int.from_bytes(header[2:4])
        elif size == 127:
            size = int.from_bytes(header[2:10])
        self._mask = header[length - 4 : length] if header[1] & 0x80 else b""
        self._left = size
        self._room = 0 if self._control else min(size, self._capture)
        self._begins = True
        return position + length - held

    def _complete_piece(self) -> None:
        """Call back with a piece. Its length is a multiple of the mask's unless it is the last one."""
        payload, begins = bytes(self._payload), self._begins
        self._payload.clear()
        self._begins = False
        if not self._control and (payload or begins):
            self._on_data(_unmasked(payload, self._mask), begins)


def _header_length(header: bytes) -> int:
    if len(header) < 2:
        return _LONGEST_HEADER
    extended = {126: 2, 127: 8}.get(header[1] & 0x7F, 0)
    return 2 + extended + (4 if header[1] & 0x80 else 0)


def _unmasked(payload: bytes, mask: bytes) -> bytes:
    if not mask or not payload:
        return payload
    size = len(payload)
    pattern = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "little") ^ int.from_bytes(pattern, "little")).to_bytes(size, "little")
