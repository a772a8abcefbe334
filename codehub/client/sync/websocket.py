"""WebSockets that block. The twin of `codehub.client.aio.websocket`."""

import ssl
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.sync.client import ClientConnection, connect

from codehub.client.requests import Request, Server
from codehub.client.transport_settings import base_headers
from codehub.client.websocket_settings import (
    MOST_MESSAGE_BYTES,
    WebSocketRefused,
    closed,
    not_opened,
    target_uri,
)


def open_websocket(server: Server, request: Request, context: ssl.SSLContext) -> "WebSocket":
    secure: dict[str, Any] = {"ssl": context} if server.is_https else {}
    try:
        opened = connect(
            target_uri(server, request), additional_headers=base_headers(server), compression=None,
            open_timeout=request.seconds, max_size=MOST_MESSAGE_BYTES, create_connection=_Connection,
            user_agent_header=None, **secure,
        )  # fmt: skip
    except (WebSocketRefused, InvalidHandshake, InvalidURI, OSError, ConnectionClosed, EOFError) as error:
        raise not_opened(server, error) from error
    return WebSocket(opened)


class _Connection(ClientConnection):
    """Connection that follows no redirect: that would send the token to another host."""

    def handshake(self, *arguments: Any, **options: Any) -> None:
        try:
            super().handshake(*arguments, **options)
        except InvalidStatus as error:
            raise WebSocketRefused.of(error.response) from error


class WebSocket:
    """Messages of an open WebSocket. WebSocketClosed means that it has closed."""

    def __init__(self, opened: ClientConnection) -> None:
        self._opened = opened
        self._connection = opened.__enter__()  # without it, websockets warns of its older use

    def send(self, message: str | bytes) -> None:
        try:
            self._connection.send(message)
        except ConnectionClosed as error:
            raise closed(error) from error

    def receive(self) -> str | bytes:
        try:
            message: str | bytes = self._connection.recv()
        except ConnectionClosed as error:
            raise closed(error) from error
        return message

    def close(self) -> None:
        self._opened.__exit__(None, None, None)
