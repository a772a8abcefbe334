"""Calls of the API: sent again where that is safe, checked, and decoded."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from codehub.client.aio.io import sleep
from codehub.client.aio.transport import AsyncCancellation, AsyncStreamedAnswer, AsyncTransport
from codehub.client.answers import Answer, check_status
from codehub.client.decoding import decode
from codehub.client.errors import CodehubError, NotFound
from codehub.client.requests import MOST_ERROR_BYTES, Request, Server
from codehub.client.retries import RECONNECT_SECONDS, RETRY_SECONDS, Backoff, may_repeat

T = TypeVar("T")


class AsyncCalls:
    """Calls to one server."""

    def __init__(
        self,
        server: Server,
        retry_seconds: float = RETRY_SECONDS,
        reconnect_seconds: float = RECONNECT_SECONDS,
    ) -> None:
        self.server = server
        self.transport = AsyncTransport(server)
        self._retry_seconds = retry_seconds
        self._reconnect_seconds = reconnect_seconds

    def reconnects(self) -> Backoff:
        """Return the delays of a stream that breaks."""
        return Backoff(self._reconnect_seconds, time.monotonic)

    async def send(
        self, request: Request, make_body: Callable[[], AsyncIterator[bytes]] | None = None
    ) -> Answer:
        """Send a request until it succeeds, fails for good, or the time is over."""
        backoff = Backoff(self._retry_seconds, time.monotonic)
        was_repeated = False
        while True:
            try:
                body = None if make_body is None else make_body()
                answer = await self.transport.send(request, body)
                check_status(answer, self.server)
                return answer
            except CodehubError as problem:
                if was_repeated and request.is_delete and isinstance(problem, NotFound):
                    return Answer(204, {}, b"")  # an attempt before has deleted it
                if not may_repeat(request, problem):
                    raise
                delay = backoff.delay(problem)
            was_repeated = True
            await sleep(delay)

    async def fetch(self, kind: type[T], request: Request) -> T:
        """Send a request, and return its JSON answer as a value."""
        answer = await self.send(request)
        return decode(kind, answer.json())

    @asynccontextmanager
    async def stream(
        self, request: Request, cancellation: AsyncCancellation | None = None
    ) -> AsyncIterator[AsyncStreamedAnswer]:
        """Yield an answer that succeeds while its body comes; raise the exception for others."""
        async with self.transport.stream(request, None, cancellation) as streamed:
            if not 200 <= streamed.status < 300:
                body = await self._read_error(streamed)
                check_status(Answer(streamed.status, streamed.headers, body), self.server)
            yield streamed

    async def _read_error(self, streamed: AsyncStreamedAnswer) -> bytes:
        body = bytearray()
        async for piece in streamed.pieces:
            body += piece
            if len(body) > MOST_ERROR_BYTES:
                break
        return bytes(body)

    async def close(self) -> None:
        await self.transport.close()
