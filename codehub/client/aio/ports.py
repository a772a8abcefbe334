"""Connections to TCP ports of a workspace."""

from typing import TYPE_CHECKING

from codehub.client.errors import WebSocketClosed

if TYPE_CHECKING:
    from codehub.client.aio.websocket import AsyncWebSocket

PIECE_BYTES = 32 << 10
"""In one message. The server takes 64 KiB."""
NORMAL = 1000


class AsyncPort:
    """Bytes to and from a port of a workspace, as over a TCP connection. Use it with `with`."""

    def __init__(self, socket: "AsyncWebSocket") -> None:
        self._socket = socket
        self._has_ended = False

    async def __aenter__(self) -> "AsyncPort":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def send(self, data: bytes) -> None:
        """Send bytes to the app."""
        for start in range(0, len(data), PIECE_BYTES):
            await self._socket.send(data[start : start + PIECE_BYTES])

    async def end(self) -> None:
        """Send the end of input. The app may still answer."""
        await self._socket.send(b"")

    async def receive(self) -> bytes:
        """Return the next bytes of the app, or none at their end.

        Raise ConnectionFailed if the app has not ended them.
        """
        if self._has_ended:
            return b""
        try:
            message = await self._socket.receive()
        except WebSocketClosed as closed:
            if closed.code != NORMAL:
                raise
            message = b""
        data = message.encode() if isinstance(message, str) else message
        self._has_ended = not data
        return data

    async def close(self) -> None:
        await self._socket.close()
