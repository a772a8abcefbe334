"""uvicorn's WebSocket protocol, with bounds on its memory and on clients that have gone."""

from typing import Any, Final, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

from codehub.asgi.uvicorn_protocol import STALL_SECONDS, with_transport

PING_SECONDS: Final = 20.0
PONG_SECONDS: Final = STALL_SECONDS
"""A ping waits behind the output that a slow client has not read yet."""
_PARSED_BYTES: Final = 16 << 10
"""Bytes that are parsed at a time. A message may take seven of them, and some 400 in memory."""


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """WebSocket protocol that aborts the connection of a client that has gone.

    uvicorn closes it instead, which waits until the client has read what is buffered. It also takes a
    client for gone when the application does not read, so that no pong of the client is read either.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._unparsed = memoryview(b"")
        """Bytes behind messages that the application has not taken yet. The transport is paused meanwhile."""
        self._has_received = False
        """Whether anything has arrived since the last ping."""

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            self.scope["extensions"] = with_transport(self.scope["extensions"] or {}, self.transport)

    def data_received(self, data: bytes) -> None:
        self._has_received = True
        self._unparsed = memoryview(bytes(self._unparsed) + data) if self._unparsed else memoryview(data)
        self._parse()

    async def receive(self) -> Any:
        message = await super().receive()
        self._parse()
        return message

    def _parse(self) -> None:
        while self._unparsed and not self.read_paused and not self.transport.is_closing():
            piece, self._unparsed = self._unparsed[:_PARSED_BYTES], self._unparsed[_PARSED_BYTES:]
            super().data_received(cast(bytes, piece))

    def handle_cont(self, event: Frame) -> None:
        if event.data or event.fin:  # fragments without content cost memory, and count towards no limit
            super().handle_cont(event)

    def send_keepalive_ping(self) -> None:
        self._has_received = False
        super().send_keepalive_ping()
        if self.read_paused and self.pong_timer is not None:
            # No pong is read. But the next ping fails if the other end of the connection is closed.
            self.pong_timer.cancel()
            self._ping_again()

    def keepalive_timeout(self) -> None:
        if self._has_received or self.read_paused:
            self._ping_again()
        else:
            self.transport.abort()

    def _ping_again(self) -> None:
        self.pong_timer = self.pending_ping_payload = None
        self.schedule_ping()

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self.close_timer is not None:
            self.close_timer.cancel()
            self.close_timer = self.loop.call_later(self.close_timeout, self.transport.abort)
