"""Queue for the input of a command, which holds its senders back. Standard library only (see `keeper`).

A sender sends frames: the length of a piece in four bytes, and the piece. An empty frame marks the end,
so that input which was cut off is never taken for all of it.
"""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable

_WRITE_BYTES = 64 << 10
_HEADER_BYTES = 4


def frame(data: bytes) -> bytes:
    """Return a piece of input as a frame. An empty one marks the end."""
    return len(data).to_bytes(_HEADER_BYTES, "big") + data


class InputFrames:
    """Decoder of frames that arrive in pieces of any size."""

    def __init__(self) -> None:
        self._header = b""
        self._rest = 0
        self.is_complete = False
        """Whether the end was marked. What follows is ignored."""

    def decode(self, data: bytes) -> bytes:
        """Return the input in a piece of a connection."""
        left, content = memoryview(data), bytearray()
        while left and not self.is_complete:
            if self._rest == 0:
                left = self._read_header(left)
            piece, left = left[: self._rest], left[self._rest :]
            self._rest -= len(piece)
            content += piece
        return bytes(content)

    def _read_header(self, data: memoryview) -> memoryview:
        missing = _HEADER_BYTES - len(self._header)
        self._header += bytes(data[:missing])
        if len(self._header) == _HEADER_BYTES:
            self._rest = int.from_bytes(self._header, "big")
            self._header = b""
            self.is_complete = self._rest == 0
        return data[missing:]


class InputQueue:
    """Writer of a command's input: a descriptor that is not blocking. `None` means closed input."""

    def __init__(
        self, selector: selectors.BaseSelector, end: Callable[[], None], taken: Callable[[bool], None]
    ) -> None:
        """Call `end` to end the input after what is queued. It may close this.

        Call `taken` when the command has taken all input, or with False when it has closed its input before.
        """
        self._selector = selector
        self._end = end
        self._taken = taken
        self._descriptor: int | None = None
        self._queued = bytearray()
        self._is_polled = False
        self._is_ending = False

    @property
    def is_open(self) -> bool:
        return self._descriptor is not None

    def open(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes) -> None:
        """Queue input, and write it as far as the command takes it."""
        self._queued += data
        self._flush()

    def end(self) -> None:
        """End the input once the command has taken what is queued."""
        self._is_ending = True
        self._flush()

    def close(self) -> None:
        """Close the input at once. What is queued is lost."""
        if self._descriptor is not None:
            self._queued.clear()
            self._poll(polled=False)
            os.close(self._descriptor)
            self._descriptor = None

    def _flush(self, _descriptor: int = -1) -> None:
        if self._descriptor is None:
            return
        try:
            while self._queued:
                del self._queued[: os.write(self._descriptor, self._queued[:_WRITE_BYTES])]
        except BlockingIOError:
            self._poll(polled=True)
            return
        except OSError:  # the command has closed its input, or ended
            self.close()
            self._taken(False)
            return
        self._poll(polled=False)
        if self._is_ending:
            self._is_ending = False
            self._end()
        self._taken(True)

    def _poll(self, *, polled: bool) -> None:
        if polled == self._is_polled:
            return
        self._is_polled = polled
        assert self._descriptor is not None
        if polled:
            self._selector.register(self._descriptor, selectors.EVENT_WRITE, self._flush)
        else:
            self._selector.unregister(self._descriptor)
