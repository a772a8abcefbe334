"""WebSockets with asyncio. The sync package has a twin of this file."""

import ssl
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from codehub.client.requests import Request, Server
from codehub.client.transport_settings import base_headers
from codehub.client.websocket_settings import (
    MOST_MESSAGE_BYTES,
    WebSocketRefused,
    closed,
    not_opened,
    target_uri,
)


async def open_websocket(server: Server, request: Request, context: ssl.SSLContext) -> "AsyncWebSocket":
    secure: dict[str, Any] = {"ssl": context} if server.is_https else {}
    try:
        connection = await connect(
            target_uri(server, request), additional_headers=base_headers(server), compression=None,
            open_timeout=request.seconds, max_size=MOST_MESSAGE_BYTES, create_connection=_Connection,
            user_agent_header=None, **secure,
        )  # fmt: skip
    except (WebSocketRefused, InvalidHandshake, InvalidURI, OSError, ConnectionClosed, EOFError) as error:
        raise not_opened(server, error) from error
    return AsyncWebSocket(connection)


class _Connection(ClientConnection):
    """Connection that follows no redirect: that would send the token to another host."""

    async def handshake(self, *arguments: Any, **options: Any) -> None:
        try:
            await super().handshake(*arguments, **options)
        except InvalidStatus as error:
            raise WebSocketRefused.of(error.response) from error


class AsyncWebSocket:
    """Messages of an open WebSocket. WebSocketClosed means that it has closed."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def send(self, message: str | bytes) -> None:
        try:
            await self._connection.send(message)
        except ConnectionClosed as error:
            raise closed(error) from error

    async def receive(self) -> str | bytes:
        try:
            message: str | bytes = await self._connection.recv()
        except ConnectionClosed as error:
            raise closed(error) from error
        return message

    async def close(self) -> None:
        await self._connection.close()
