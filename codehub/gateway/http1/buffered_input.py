"""A client's unread bytes, and when its socket is read."""

import asyncio

from codehub.gateway.address_limits import AddressShare
from codehub.gateway.http1.interfaces import Worker


class BufferedInput(asyncio.Protocol):
    """Base of a client's connection: its input buffer, its turns (ADR 0024) and its flow control.

    It is a base class and not a member, because every request uses the buffer several times.
    """

    __slots__ = (
        "_buffer",
        "_buffer_start",
        "_held_for_buffer",
        "_held_for_records",
        "_held_for_upstream",
        "_is_waiting",
        "_share",
        "gateway",
        "transport",
    )

    def __init__(self, gateway: Worker) -> None:
        self.gateway = gateway
        self.transport: asyncio.Transport
        self._share: AddressShare
        self._buffer = b""
        """Bytes that arrived, unread from `_buffer_start` on. Empty when all were read."""
        self._buffer_start = 0
        self._is_waiting = False
        """Whether this connection is in the turn queue."""
        self._held_for_upstream = False
        self._held_for_buffer = False
        self._held_for_records = False
        """Whether further TLS records wait for their turn."""

    @property
    def _buffered(self) -> int:
        return len(self._buffer) - self._buffer_start

    def _append(self, data: bytes) -> None:
        if self._buffer:
            self._buffer = self._buffer[self._buffer_start :] + data
        else:
            self._buffer = data
        self._buffer_start = 0

    def _drop_until(self, position: int) -> None:
        """Drop the beginning of the buffer, without copying the rest for each request in it."""
        if position == len(self._buffer):
            self._buffer, self._buffer_start = b"", 0
        else:
            self._buffer_start = position

    def _take_all(self) -> bytes:
        """Empty the buffer, and return what was unread."""
        data = self._buffer[self._buffer_start :]
        self._buffer, self._buffer_start = b"", 0
        return data

    def _wait_for_turn(self) -> None:
        """Stop reading, and process the buffer in a later turn of the loop."""
        self._hold_for_buffer(True)
        if not self._is_waiting:
            self._is_waiting = True
            self.gateway.turns.add(self._share, self._take_turn)

    def _take_turn(self) -> None:
        raise NotImplementedError

    def _hold_for_buffer(self, hold: bool) -> None:
        if hold != self._held_for_buffer:
            self._held_for_buffer = hold
            self._update_reading()

    def _wait_for_records(self) -> bool:
        """Stop reading, and decrypt further records in a later turn. Return False if this is being closed."""
        if self.transport.is_closing():
            return False
        if not self._held_for_records:
            self._held_for_records = True
            self._update_reading()
            self.gateway.turns.add(self._share, self._read_records)
        return True

    def _read_records(self) -> None:
        self._held_for_records = False
        self._update_reading()
        self.gateway.turns.end_turn()

    def _update_reading(self) -> None:
        if self.transport.is_closing():
            return
        if self._held_for_upstream or self._held_for_buffer or self._held_for_records:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()
