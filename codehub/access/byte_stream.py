"""Responses that carry a workspace's bytes: never rendered, of no guessed type, as slow as their reader."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from codehub.access.services import AccessServices
from codehub.asgi.uvicorn_protocol import transport_of
from codehub.database.credentials import Credential

CONTENT_SECURITY_POLICY: Final = "sandbox; default-src 'none'"
NOT_RENDERED: Final = {
    "Content-Disposition": "attachment",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer of this part: lists and errors too have names and lines that a workspace has chosen."""
SAFE_HEADERS: Final = {"Content-Type": "application/octet-stream", **NOT_RENDERED}

BYTES: Final[dict[str, Any]] = {
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
}
"""Bytes in the OpenAPI document."""


class StreamCut(Exception):  # noqa: N818 - a fact, not a fault
    """The rest of a stream cannot follow: the client must see that it is incomplete, and ask again."""


class ByteStream(Response):
    """Streaming response that ends with its client, its credential, or this process.

    Whatever ends it early aborts the connection, so that an incomplete response never looks whole. A
    client then asks again from the offset that it has reached.
    """

    def __init__(
        self,
        pieces: AsyncIterator[bytes],
        services: AccessServices,
        caller: Credential,
        headers: Mapping[str, str],
        *,
        status: int = 200,
        resources: AsyncExitStack | None = None,
    ) -> None:
        """`resources` are what the pieces come from. They are released when the response ends."""
        super().__init__(status_code=status, headers={**SAFE_HEADERS, **headers})
        if "Content-Length" not in headers:
            del self.headers["content-length"]
        self._pieces = pieces
        self._resources = resources or AsyncExitStack()
        self._services = services
        self._caller = caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop, transport = asyncio.get_running_loop(), transport_of(scope)
        ended = asyncio.Event()

        def end() -> None:
            if transport is not None:
                transport.abort()
            ended.set()

        async with self._resources:
            self._watch(self._resources, end)
            await self._check()
            stream = loop.create_task(self._stream(send))
            others = [loop.create_task(ended.wait()), loop.create_task(_disconnected(receive))]
            try:
                await asyncio.wait({stream, *others}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await _finish(stream, others, end)

    def _watch(self, stack: AsyncExitStack, end: Callable[[], None]) -> None:
        """Call `end` when the stream must end, until the stack is closed."""
        stack.enter_context(self._services.readers.register(self._caller.user_id, end))
        stack.enter_context(self._services.credential_revocations.watch(self._caller, end))

    async def _check(self) -> None:
        """Raise a Problem if the stream may not begin. From here on, changes end it."""

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _finish(
    stream: "asyncio.Task[None]", others: Sequence["asyncio.Task[Any]"], end: Callable[[], None]
) -> None:
    """Cancel what still runs. A stream that failed aborts the connection."""
    completed = stream.done()
    for task in (stream, *others):
        task.cancel()
    results = await asyncio.gather(stream, *others, return_exceptions=True)
    failure = results[0]
    if not completed or failure is not None:
        end()
    if isinstance(failure, Exception) and not isinstance(failure, StreamCut | OSError):
        raise failure


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
