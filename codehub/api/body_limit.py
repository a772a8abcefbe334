"""Bounds on the size and duration of request bodies, checked before they are parsed."""

import asyncio
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from codehub.api.errors import envelope

MAX_BODY: Final = 256 << 10
MAX_SECONDS: Final = 30.0
"""A body is buffered before the caller is authenticated, so a slow one must not stay in memory."""


class BodyLimitMiddleware:
    """Middleware that buffers a body of at most MAX_BODY bytes, and rejects a longer one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(MAX_SECONDS):
                body = None if _declared_length(scope) > MAX_BODY else await _read_body(receive)
        except TimeoutError:
            await envelope(408, "TIMEOUT", "The body of the request took too long to arrive.")(
                scope, receive, send
            )
            return
        if body is None:
            response = envelope(
                413, "PAYLOAD_TOO_LARGE", f"The body of the request is larger than {MAX_BODY >> 10} KiB."
            )
            await response(scope, receive, send)
            return
        await self._app(scope, _replay(body, receive), send)


def _declared_length(scope: Scope) -> int:
    length = Headers(scope=scope).get("content-length", "0")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 19 else MAX_BODY + 1


async def _read_body(receive: Receive) -> bytes | None:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return bytes(body)
        body += message.get("body", b"")
        if len(body) > MAX_BODY:
            return None
        if not message.get("more_body", False):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    replayed = False

    async def replay() -> Message:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
