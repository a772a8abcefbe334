"""Queue for the input of a command, which holds its senders back. Standard library only (see `keeper`)."""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable

_WRITE_BYTES = 64 << 10


class InputQueue:
    """Writer of a command's input: a descriptor that is not blocking. `None` means closed input."""

    def __init__(self, selector: selectors.BaseSelector, taken: Callable[[], None]) -> None:
        """Call `taken` whenever the command has taken all input, or has closed it."""
        self._selector = selector
        self._taken = taken
        self._descriptor: int | None = None
        self._queued = bytearray()
        self._is_polled = False

    @property
    def is_open(self) -> bool:
        return self._descriptor is not None

    def open(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes) -> None:
        """Queue input, and write it as far as the command takes it."""
        self._queued += data
        self._flush()

    def close(self) -> None:
        if self._descriptor is not None:
            self._poll(polled=False)
            os.close(self._descriptor)
            self._descriptor = None

    def _flush(self, _descriptor: int = -1) -> None:
        assert self._descriptor is not None
        try:
            while self._queued:
                del self._queued[: os.write(self._descriptor, self._queued[:_WRITE_BYTES])]
        except BlockingIOError:
            self._poll(polled=True)
            return
        except OSError:  # the command has closed its input, or ended
            self._queued.clear()
            self.close()
        else:
            self._poll(polled=False)
        self._taken()

    def _poll(self, *, polled: bool) -> None:
        if polled == self._is_polled:
            return
        self._is_polled = polled
        assert self._descriptor is not None
        if polled:
            self._selector.register(self._descriptor, selectors.EVENT_WRITE, self._flush)
        else:
            self._selector.unregister(self._descriptor)
