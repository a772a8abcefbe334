"""Bounds on what a request may carry, before anything parses it."""

import asyncio
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from codehub.api.errors import envelope

MAX_BODY: Final = 256 << 10
MAX_SECONDS: Final = 30.0
"""A body is kept until it is whole, before anyone knows whose it is: it may not drip in for ever."""


class BodyLimitMiddleware:
    """Reads a body of at most MAX_BODY bytes; a longer one is refused without being kept."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(MAX_SECONDS):
                body = None if _declared(scope) > MAX_BODY else await _read(receive)
        except TimeoutError:
            await envelope(408, "TIMEOUT", "The body took too long.")(scope, receive, send)
            return
        if body is None:
            refusal = envelope(413, "PAYLOAD_TOO_LARGE", f"The body is larger than {MAX_BODY >> 10} KiB.")
            await refusal(scope, receive, send)
            return
        await self._app(scope, _replay(body, receive), send)


def _declared(scope: Scope) -> int:
    length = Headers(scope=scope).get("content-length", "0")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 19 else MAX_BODY + 1


async def _read(receive: Receive) -> bytes | None:
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
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
