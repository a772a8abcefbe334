"""WebSocket frames (RFC 6455, 5.2), read beside the relay: what passes is never changed or held up."""

from collections.abc import Callable
from typing import Final

_LONGEST_HEADER: Final = 14
_FIRST_CONTROL_OPCODE: Final = 8


class FrameReader:
    """Calls back with the payload of each data frame, up to `capture` bytes of it."""

    __slots__ = ("_capture", "_control", "_header", "_left", "_mask", "_on_data", "_payload")

    def __init__(self, on_data: Callable[[bytes], None], capture: int) -> None:
        self._on_data = on_data
        self._capture = capture
        self._header = b""
        self._payload = b""
        self._mask = b""
        self._left = 0
        self._control = False

    def feed(self, data: bytes) -> None:
        """Nearly every piece of a stream is one whole frame with a header of 2 or 6 bytes."""
        if not self._left and not self._header and len(data) > 1:
            length = data[1]
            begin = 2
            if length > 127:
                length -= 128
                begin = 6
            if length < 126 and len(data) == begin + length:
                if data[0] & 0x08 == 0:
                    self._on_data(self._captured(data, begin) if self._capture else b"")
                return
        self._feed(data)

    def _captured(self, data: bytes, begin: int) -> bytes:
        payload = data[begin : begin + self._capture]
        return _unmasked(payload, data[2:6]) if begin == 6 else payload

    def _feed(self, data: bytes) -> None:
        position, size = 0, len(data)
        while position < size:
            if not self._left:
                position = self._take_header(data, position)
                if self._header:
                    return
            taken = min(self._left, size - position)
            room = self._capture - len(self._payload)
            if room > 0:
                self._payload += data[position : position + min(taken, room)]
            self._left -= taken
            position += taken
            if not self._left:
                self._complete()

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
        return position + length - held

    def _complete(self) -> None:
        payload, self._payload = self._payload, b""
        if not self._control:
            self._on_data(_unmasked(payload, self._mask))


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
