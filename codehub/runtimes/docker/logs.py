"""Output of a container, read from the engine piece by piece.

The engine reads the output from its files, so no reader delays the container. After a flood of output
an engine may stop to send, or report an error (20.10 does, once its files are replaced faster than it
reads). A stream that fails, or that lacks the newest output, is begun again behind what was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from codehub.runtimes.command_runtime import LogsUnavailable
from codehub.runtimes.docker.engine_http import (
    DEFAULT_PORT,
    LONGEST_HEAD,
    EngineGone,
    request_head,
    status_of,
)
from codehub.runtimes.docker.log_frames import EngineError, LogFrames, Position

PIECE_BYTES: Final = 64 << 10
SKIPPED: Final = b"[codehub: output is missing here, because it came too fast]\n"
_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 1.0
_IDLE_SECONDS: Final = 3.0
"""How long nothing comes before a stream is compared with the newest output."""
_END_SECONDS: Final = 2.0
"""How long the engine may take to end the output of a container that has stopped."""
_OK: Final = 200
_END_OF_HEAD: Final = b"\r\n\r\n"


@dataclass(frozen=True)
class LogSource:
    """The engine, and how to find the container of a workspace there (None: there is none)."""

    url: str
    find: Callable[[], Mapping[str, Any] | None]

    async def container_id(self) -> str | None:
        found = await asyncio.to_thread(self.find)
        return None if found is None else str(found["Id"])


@contextlib.asynccontextmanager
async def open_logs(
    source: LogSource, lines: int, until: asyncio.Event
) -> AsyncIterator[AsyncGenerator[bytes, None]]:
    """Yield the last lines of the output, then what follows until `until` is set."""
    with _answering_problems():
        container_id = await source.container_id()
    async with contextlib.aclosing(_read_all(source, container_id, lines, until)) as pieces:
        yield pieces


async def _read_all(
    source: LogSource, container_id: str | None, lines: int, until: asyncio.Event
) -> AsyncGenerator[bytes, None]:
    """Yield the output of a container, and of those that replace it."""
    tail = str(lines)
    follows = not until.is_set()
    with _answering_problems():
        while True:
            if container_id is not None:
                reader = _ContainerReader(source.url, container_id, until)
                pieces = reader.follow(tail) if follows else reader.read(f"tail={tail}", _SECONDS)
                async with contextlib.aclosing(pieces):
                    async for piece in pieces:
                        yield piece
            tail = "all"
            container_id = await _next_container(source, container_id, until)
            if container_id is None:
                return


async def _next_container(source: LogSource, last: str | None, until: asyncio.Event) -> str | None:
    """Wait for a container that replaces the last one. Return None once `until` is set."""
    while not until.is_set():
        found = await source.container_id()
        if found not in (None, last):
            return found
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(until.wait(), _POLL_SECONDS)
    return None


class _ContainerReader:
    """Reader of one container's output."""

    def __init__(self, url: str, container_id: str, until: asyncio.Event) -> None:
        self._url = url
        self._id = container_id
        self._until = until
        self._sent = Position()
        """The last message that was sent."""
        self._ends_in_newline = True
        self._is_over = False

    async def follow(self, tail: str) -> AsyncGenerator[bytes, None]:
        """Yield the last messages and what follows, until the container ends or `until` is set."""
        query = f"tail={tail}&follow=1"
        while not self._is_over:
            async with contextlib.aclosing(self.read(query, None)) as pieces:
                try:
                    async for piece in pieces:
                        yield piece
                except EngineError:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._until.wait(), _POLL_SECONDS)
            query = f"tail=all&since={self._sent.since}&follow=1"

    async def read(self, query: str, within: float | None) -> AsyncGenerator[bytes, None]:
        """Yield messages behind those that were sent. Without `within`, return also after a stall."""
        frames = LogFrames(self._sent)
        async with self._connected(query) as reader:
            head = b""
            while data := await self._next_piece(reader, within):
                if not head.endswith(_END_OF_HEAD):
                    head, data = _split_head(head + data)
                content = frames.decode(data)
                self._sent = frames.position
                if frames.take_gap():
                    yield SKIPPED if self._ends_in_newline else b"\n" + SKIPPED
                if content:
                    self._ends_in_newline = content.endswith(b"\n")
                    yield content

    async def _next_piece(self, reader: asyncio.StreamReader, within: float | None) -> bytes:
        """Return a piece, or nothing at the end or after a stall."""
        reading = asyncio.ensure_future(reader.read(PIECE_BYTES))
        ended = asyncio.ensure_future(self._until.wait())
        try:
            if within is not None:
                return await asyncio.wait_for(reading, within)
            while True:
                await asyncio.wait(
                    {reading, ended}, timeout=_IDLE_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if not reading.done() and ended.done():
                    await asyncio.wait({reading}, timeout=_END_SECONDS)
                if reading.done() or ended.done():
                    data = reading.result() if reading.done() else b""
                    self._is_over = not data
                    return data
                if await self._has_stalled() and not reading.done():
                    return b""
        finally:
            reading.cancel()
            ended.cancel()

    async def _has_stalled(self) -> bool:
        """Return whether the newest message is one that the stream has not sent."""
        newest = LogFrames(Position())
        async with self._connected("tail=1") as reader:
            head = b""
            while data := await asyncio.wait_for(reader.read(PIECE_BYTES), _SECONDS):
                if not head.endswith(_END_OF_HEAD):
                    head, data = _split_head(head + data)
                newest.decode(data)
        return newest.position.time > self._sent.time

    @contextlib.asynccontextmanager
    async def _connected(self, query: str) -> AsyncIterator[asyncio.StreamReader]:
        """Request output, with HTTP/1.0: the engine closes the connection behind it.

        Its answer begins with the first output. So nothing waits for it here.
        """
        path = f"/containers/{self._id}/logs?stdout=1&stderr=1&timestamps=1&{query}"
        async with asyncio.timeout(_SECONDS):
            reader, writer = await _connect(self._url)
        try:
            writer.write(request_head("GET", path, "1.0", None))
            yield reader
        finally:
            writer.transport.abort()


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return await asyncio.open_unix_connection(parts.path, limit=LONGEST_HEAD)
    return await asyncio.open_connection(parts.hostname, parts.port or DEFAULT_PORT, limit=LONGEST_HEAD)


def _split_head(data: bytes) -> tuple[bytes, bytes]:
    """Return the head of the answer, as far as it has arrived, and what follows it."""
    head, end, rest = data.partition(_END_OF_HEAD)
    if not end and len(head) > LONGEST_HEAD:
        raise EngineGone("the Docker engine sent no HTTP")
    if end and status_of(head) != _OK:
        raise EngineGone(f"the Docker engine did not send the output (status {status_of(head)})")
    return head + end, rest


@contextlib.contextmanager
def _answering_problems() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise LogsUnavailable("the Docker engine did not answer in time") from error
    except OSError as error:
        raise LogsUnavailable(f"the output cannot be read: {error}") from error
