"""Output of a container, read from the engine piece by piece."""

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
from codehub.runtimes.docker.exec_stream import FrameDecoder

PIECE_BYTES: Final = 64 << 10
_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 1.0
_END_SECONDS: Final = 2.0
"""How long the engine may take to end the output of a container that has stopped."""
_OK: Final = 200


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
        async with contextlib.AsyncExitStack() as stack:
            container_id = await source.container_id()
            first = None
            if container_id is not None:
                first = await stack.enter_async_context(_open(source.url, container_id, lines, until))
            pieces = _follow(source, container_id, first, until)
            yield await stack.enter_async_context(contextlib.aclosing(pieces))


async def _follow(
    source: LogSource, container_id: str | None, reader: asyncio.StreamReader | None, until: asyncio.Event
) -> AsyncGenerator[bytes, None]:
    """Yield the output of a container, and of those that replace it."""
    with _answering_problems():
        if reader is not None:
            async with contextlib.aclosing(_contents(reader, until)) as contents:
                async for piece in contents:
                    yield piece
        while (container_id := await _next_container(source, container_id, until)) is not None:
            async with (
                _open(source.url, container_id, None, until) as reader,
                contextlib.aclosing(_contents(reader, until)) as contents,
            ):
                async for piece in contents:
                    yield piece


async def _next_container(source: LogSource, last: str | None, until: asyncio.Event) -> str | None:
    """Wait for a container that replaces the last one. Return None once `until` is set."""
    while not until.is_set():
        found = await source.container_id()
        if found not in (None, last):
            return found
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(until.wait(), _POLL_SECONDS)
    return None


@contextlib.asynccontextmanager
async def _open(
    url: str, container_id: str, lines: int | None, until: asyncio.Event
) -> AsyncIterator[asyncio.StreamReader]:
    """Request output, with HTTP/1.0: the engine closes the connection behind it."""
    tail = "all" if lines is None else lines
    path = f"/containers/{container_id}/logs?stdout=1&stderr=1&tail={tail}&follow={int(not until.is_set())}"
    async with asyncio.timeout(_SECONDS):
        reader, writer = await _connect(url)
    try:
        async with asyncio.timeout(_SECONDS):
            writer.write(request_head("GET", path, "1.0", None))
            head = await reader.readuntil(b"\r\n\r\n")
        if status_of(head) != _OK:
            raise EngineGone(f"the Docker engine did not send the output (status {status_of(head)})")
        yield reader
    finally:
        writer.transport.abort()


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return await asyncio.open_unix_connection(parts.path, limit=LONGEST_HEAD)
    return await asyncio.open_connection(parts.hostname, parts.port or DEFAULT_PORT, limit=LONGEST_HEAD)


async def _contents(reader: asyncio.StreamReader, until: asyncio.Event) -> AsyncGenerator[bytes, None]:
    """Yield what a container has written, until the engine ends it, or soon after `until` is set."""
    decoder = FrameDecoder()
    is_complete = until.is_set()
    ended = asyncio.ensure_future(until.wait())
    try:
        while (data := await _read(reader, ended, _SECONDS if is_complete else _END_SECONDS)) != b"":
            if data is None and is_complete:
                raise TimeoutError
            if data is None:
                return
            if content := b"".join(piece for _, piece in decoder.decode(data)):
                yield content
    finally:
        ended.cancel()


async def _read(reader: asyncio.StreamReader, ended: asyncio.Future[Any], within: float) -> bytes | None:
    """Return a piece, nothing at the end, and None if nothing comes within some seconds after `ended`."""
    reading = asyncio.ensure_future(reader.read(PIECE_BYTES))
    try:
        await asyncio.wait({reading, ended}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({reading}, timeout=within)
        return reading.result() if reading.done() else None
    finally:
        reading.cancel()


@contextlib.contextmanager
def _answering_problems() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise LogsUnavailable("the Docker engine did not answer in time") from error
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise LogsUnavailable(f"the output cannot be read: {error}") from error
