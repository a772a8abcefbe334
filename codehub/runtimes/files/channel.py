"""The file agent's end of its connection. Standard library only (see `agent`)."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

from codehub.runtimes.files.protocol import (
    ALIVE,
    BATCH_BYTES,
    DATA,
    END,
    ERROR,
    HEADER,
    MAX_DATA,
    MAX_PAYLOAD,
    MESSAGE,
    FileRefused,
    Request,
    read_request,
    to_fields,
)

_ALIVE_SECONDS = 1.0


class ClientGone(Exception):  # noqa: N818 - a fact, not a fault
    """The client has closed the connection, or does not follow the protocol."""


class Channel:
    """Frames on a blocking socket. A client that does not read makes the agent wait."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._last_sent = time.monotonic()
        self._is_receiving_data = False

    def next_request(self) -> Request:
        kind, payload = self._receive()
        if kind != MESSAGE:
            raise ClientGone
        return read_request(payload)

    def incoming(self) -> Iterator[bytes]:
        """Yield the data that the client sends, up to its end."""
        while self._is_receiving_data:
            kind, payload = self._receive()
            if kind == END:
                self._is_receiving_data = False
            elif kind == DATA:
                yield payload
            else:
                raise ClientGone

    def request_data(self, **message: object) -> None:
        self.send_message(**message)
        self._is_receiving_data = True

    def send_message(self, **message: object) -> None:
        self._send_json(MESSAGE, message)

    def send_error(self, error: FileRefused) -> None:
        """Send an error, and discard what the client still sends until it has read that."""
        self._send_json(ERROR, {"code": error.code, "message": error.message[:1000]})
        for _ in self.incoming():
            pass

    def send_data(self, data: bytes | memoryview) -> None:
        for start in range(0, len(data), MAX_DATA):
            self._send(DATA, data[start : start + MAX_DATA])

    def send_end(self, **message: object) -> None:
        self._send_json(END, message)

    def send_alive(self) -> None:
        if time.monotonic() - self._last_sent >= _ALIVE_SECONDS:
            self._send(ALIVE, b"")

    def _send_json(self, kind: bytes, message: dict[str, Any]) -> None:
        self._send(kind, json.dumps(message).encode())

    def _send(self, kind: bytes, payload: bytes | memoryview) -> None:
        try:
            self._connection.sendall(HEADER.pack(kind, len(payload)))
            self._connection.sendall(payload)
        except OSError as error:
            raise ClientGone from error
        self._last_sent = time.monotonic()

    def _receive(self) -> tuple[bytes, bytes]:
        kind, length = HEADER.unpack(self._receive_exactly(HEADER.size))
        if length > MAX_PAYLOAD.get(kind, -1):
            raise ClientGone
        return kind, self._receive_exactly(length)

    def _receive_exactly(self, count: int) -> bytes:
        data = bytearray(count)
        view = memoryview(data)
        position = 0
        while position < count:
            try:
                received = self._connection.recv_into(view[position:])
            except OSError as error:
                raise ClientGone from error
            if received == 0:
                raise ClientGone
            position += received
        return bytes(data)


class Batch:
    """Buffer of entries or matches, sent in messages of bounded size."""

    def __init__(self, channel: Channel, name: str) -> None:
        self._channel = channel
        self._name = name
        self._entries: list[dict[str, Any]] = []
        self._bytes = 0
        self.count = 0

    def add(self, fact: object) -> None:
        entry = to_fields(fact)
        self._entries.append(entry)
        self._bytes += len(json.dumps(entry))
        self.count += 1
        if self._bytes >= BATCH_BYTES:
            self._send()

    def end(self, **message: object) -> None:
        self._send()
        self._channel.send_end(**message)

    def _send(self) -> None:
        if self._entries:
            self._channel.send_message(**{self._name: self._entries})
            self._entries, self._bytes = [], 0
