"""Bounds on request bodies, before they are parsed: size, duration, and who may send one."""

import asyncio
from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from codehub.asgi.call_admission import admitted_credential
from codehub.asgi.errors import envelope

MAX_BODY: Final = 256 << 10
MAX_SIGN_IN: Final = 16 << 10
"""Bytes of a sign-in, the only body that is read without a session."""
MAX_SECONDS: Final = 30.0
MAX_UNFINISHED_SIGN_INS: Final = 256
"""Bodies of sign-ins that are read at a time, 4 MiB together.

One more ends the one that has taken longest. A real one takes one packet, so it is not the oldest.
"""


class BodyLimitMiddleware:
    """Middleware that buffers the body of a call.

    The bodies of signed-in users occupy their slots. Without a session, only the body of a sign-in is
    read. The handler gets no other, and answers with 401.
    """

    def __init__(
        self, app: ASGIApp, *, login_path: str = "", is_streamed: Callable[[str], bool] = lambda _path: False
    ) -> None:
        """`is_streamed` returns whether a path takes bodies of any size, in pieces."""
        self._app = app
        self._login_path = login_path
        self._is_streamed = is_streamed
        self._unfinished: dict[asyncio.Timeout, None] = {}
        """Timeouts of the sign-ins that are being read, oldest first."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        if admitted_credential(scope) is not None and self._is_streamed(scope["path"]):
            await self._app(scope, receive, send)
            return
        most = self._max_size(scope)
        try:
            body = await self._read_in_time(scope, receive, most) if most else b""
        except TimeoutError:
            await envelope(408, "TIMEOUT", "The body of the request took too long to arrive.")(
                scope, receive, send
            )
            return
        if body is None:
            response = envelope(
                413, "PAYLOAD_TOO_LARGE", f"The body of the request is larger than {most >> 10} KiB."
            )
            await response(scope, receive, send)
            return
        await self._app(scope, _replay(body, receive), send)

    def _max_size(self, scope: Scope) -> int:
        if scope["path"] == self._login_path:
            return MAX_SIGN_IN
        return 0 if admitted_credential(scope) is None else MAX_BODY

    async def _read_in_time(self, scope: Scope, receive: Receive, most: int) -> bytes | None:
        if _declared_length(scope) > most:
            return None
        async with asyncio.timeout(MAX_SECONDS) as timeout:
            if most == MAX_BODY:
                return await _read_body(receive, most)
            if len(self._unfinished) >= MAX_UNFINISHED_SIGN_INS:
                self._end_oldest()
            self._unfinished[timeout] = None
            try:
                return await _read_body(receive, most)
            finally:
                self._unfinished.pop(timeout, None)

    def _end_oldest(self) -> None:
        oldest = next(iter(self._unfinished))
        del self._unfinished[oldest]
        if not oldest.expired():
            oldest.reschedule(0)


def _declared_length(scope: Scope) -> int:
    length = Headers(scope=scope).get("content-length", "0")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 19 else MAX_BODY + 1


async def _read_body(receive: Receive, most: int) -> bytes | None:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return bytes(body)
        body += message.get("body", b"")
        if len(body) > most:
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
