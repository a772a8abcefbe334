"""HTTP connections to one server, with asyncio. The sync package has a twin of this file."""

import contextlib
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from codehub.client.answers import Answer
from codehub.client.errors import TimedOut, UnexpectedAnswer
from codehub.client.http_errors import mapped_errors, timeouts
from codehub.client.requests import CONNECT_SECONDS, MOST_ANSWER_BYTES, Request, Server
from codehub.client.transport_settings import base_headers, ssl_context, target

if TYPE_CHECKING:
    from codehub.client.aio.websocket import AsyncWebSocket


@dataclass(frozen=True)
class AsyncStreamedAnswer:
    """Response whose body comes in pieces."""

    status: int
    headers: dict[str, str]
    pieces: AsyncIterator[bytes]


class AsyncTransport:
    """Connections to one server. Redirects are never followed, so that the token stays there."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ssl: ssl.SSLContext = ssl_context(server)
        self._http = httpx.AsyncClient(
            headers=base_headers(server), follow_redirects=False, verify=self._ssl, timeout=CONNECT_SECONDS
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def send(self, request: Request, body: AsyncIterator[bytes] | None = None) -> Answer:
        """Send a request, and return its whole answer, whatever its status."""
        async with self.stream(request, body) as streamed:
            return Answer(streamed.status, streamed.headers, await self._whole(streamed, request))

    @contextlib.asynccontextmanager
    async def stream(
        self,
        request: Request,
        body: AsyncIterator[bytes] | None = None,
        cancellation: "AsyncCancellation | None" = None,
    ) -> AsyncIterator[AsyncStreamedAnswer]:
        """Send a request, and yield its answer while its body comes."""
        made = self._http.build_request(
            request.method, target(self._server, request), params=dict(request.query),
            headers=dict(request.headers), json=request.json,
            content=request.content if body is None else body, timeout=timeouts(request.seconds),
        )  # fmt: skip
        with mapped_errors(self._server):
            response = await self._http.send(made, stream=True)
        try:
            headers = {name.lower(): value for name, value in response.headers.items()}
            yield AsyncStreamedAnswer(response.status_code, headers, self._pieces(response))
        finally:
            await response.aclose()

    async def _pieces(self, response: httpx.Response) -> AsyncIterator[bytes]:
        with mapped_errors(self._server, in_stream=True):
            async for piece in response.aiter_bytes():
                yield piece

    async def _whole(self, streamed: AsyncStreamedAnswer, request: Request) -> bytes:
        deadline = time.monotonic() + request.seconds
        body = bytearray()
        async for piece in streamed.pieces:
            body += piece
            if len(body) > MOST_ANSWER_BYTES:
                raise UnexpectedAnswer("The server's answer is too long.", streamed.status)
            if time.monotonic() > deadline:
                raise TimedOut(f"{self._server.url} did not end its answer in time.", may_have_happened=True)
        return bytes(body)

    async def open_websocket(self, request: Request) -> "AsyncWebSocket":
        """Open a WebSocket; raise what the server answers if it refuses."""
        from codehub.client.aio import websocket  # websockets takes as long to load as all else

        return await websocket.open_websocket(self._server, request, self._ssl)


class AsyncCancellation:
    """What ends streams that are being read. Tasks are cancelled, so that there is nothing to do."""

    is_cancelled = False
