"""What both kinds of WebSockets share."""

from typing import Final

import httpx
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI
from websockets.http11 import Response

from codehub.client.answers import Answer, check_status
from codehub.client.errors import CodehubError, ConnectionFailed, UnexpectedAnswer, WebSocketClosed
from codehub.client.requests import Request, Server
from codehub.client.transport_settings import target

MOST_MESSAGE_BYTES: Final = 4 << 20


def target_uri(server: Server, request: Request) -> str:
    uri = str(httpx.URL(target(server, request), params=dict(request.query)))
    return "ws" + uri.removeprefix("http")


def closed(error: ConnectionClosed) -> WebSocketClosed:
    return (
        WebSocketClosed(1006, "")
        if error.rcvd is None
        else WebSocketClosed(error.rcvd.code, error.rcvd.reason)
    )


def not_opened(server: Server, error: Exception) -> CodehubError:
    """Return the exception for a WebSocket that was not opened."""
    if isinstance(error, WebSocketRefused):
        try:
            check_status(error.answer, server)
        except CodehubError as problem:
            return problem
        return UnexpectedAnswer(f"{server.url} opens no WebSocket.", error.answer.status)
    if isinstance(error, InvalidHandshake | InvalidURI):
        return UnexpectedAnswer(f"{server.url} opens no WebSocket: {error}.")
    return ConnectionFailed(f"{server.url} cannot be reached: {str(error) or type(error).__name__}.")


class WebSocketRefused(Exception):  # noqa: N818 - a fact
    """Answer of a server that opens no WebSocket. websockets must not see a redirect: it would follow it."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(str(answer.status))
        self.answer = answer

    @classmethod
    def of(cls, response: Response) -> "WebSocketRefused":
        headers = {name.lower(): value for name, value in response.headers.raw_items()}
        return cls(Answer(response.status_code, headers, bytes(response.body or b"")))
