"""Client of a file agent: operations on the files of one running workspace."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol, Self

from codehub.runtimes.files.connection import (
    IDLE_SECONDS,
    READ_LIMIT,
    AgentConnection,
    AgentFailed,
    broken_protocol,
    count_from,
    facts_from,
    field,
    match_from,
    parse_message,
)
from codehub.runtimes.files.protocol import (
    DATA,
    END,
    FILES_REQUEST,
    GREETING,
    MAX_DATA,
    MAX_ENTRIES,
    MAX_MATCHES,
    MESSAGE,
    DeleteRequest,
    DirectoryRequest,
    DownloadRequest,
    FileFacts,
    ListRequest,
    MoveRequest,
    OpenRequest,
    ReadRequest,
    Request,
    SearchMatch,
    SearchRequest,
    UploadRequest,
    WriteRequest,
    write_request,
)

_START_SECONDS = 15.0
_WORK_SECONDS = 600.0
"""The longest time for an answer that is not streamed."""


class FilesUnavailable(Exception):  # noqa: N818 - a fact, not a fault
    """The workspace offers no files. The message is for the person who asked for them."""


class FileRuntime(Protocol):
    """Interface to the files of a runtime's running workspaces."""

    def open_files(self, workspace_id: str) -> contextlib.AbstractAsyncContextManager[FileSession]:
        """Start a file agent in a workspace, for as long as the context lasts.

        Raise `FilesUnavailable` if the workspace offers no files.
        """


@dataclass(frozen=True)
class FileList:
    facts: FileFacts
    entries: list[FileFacts]
    truncated: bool


@dataclass(frozen=True)
class SearchResult:
    matches: list[SearchMatch]
    truncated: bool


@dataclass(frozen=True)
class Written:
    facts: FileFacts
    created: bool


@dataclass(frozen=True)
class Unpacked:
    entries: int
    bytes: int


class FileSession:
    """Operations, one after the other. After `AgentFailed` no other is possible.

    They raise `FileRefused` if the workspace refuses them.
    """

    def __init__(self, connection: AgentConnection) -> None:
        self._connection = connection

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(cls, socket_path: str, idle_seconds: float = IDLE_SECONDS) -> AsyncIterator[Self]:
        """Request an agent from a broker, and wait until it greets."""
        opened = await asyncio.open_unix_connection(socket_path, limit=READ_LIMIT)
        async with cls.begin(opened, FILES_REQUEST, idle_seconds) as session:
            yield session

    @classmethod
    @contextlib.asynccontextmanager
    async def begin(
        cls,
        opened: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        request: str,
        idle_seconds: float = IDLE_SECONDS,
    ) -> AsyncIterator[Self]:
        """Send the request for an agent, and wait until it greets."""
        connection = AgentConnection(*opened, idle_seconds)
        try:
            await connection.send_text(request)
            async with _limit(_START_SECONDS):
                if (await connection.receive_message()).get("greeting") != GREETING:
                    raise broken_protocol()
            yield cls(connection)
        finally:
            connection.close()

    async def list(self, request: ListRequest) -> FileList:
        async with _limit(_WORK_SECONDS):
            await self._request(request)
            raw, truncated = await self._connection.receive_items("entries", MAX_ENTRIES + 1)
        if not raw:
            raise broken_protocol()
        facts, *entries = (facts_from(item) for item in raw)
        return FileList(facts, entries, truncated)

    async def search(self, request: SearchRequest) -> SearchResult:
        async with _limit(_WORK_SECONDS):
            await self._request(request)
            raw, truncated = await self._connection.receive_items("matches", MAX_MATCHES)
        return SearchResult([match_from(item) for item in raw], truncated)

    async def open(self, path: bytes) -> FileFacts:
        """Open a regular file, for `read`."""
        await self._request(OpenRequest(path))
        return await self._facts()

    async def read(self, offset: int, length: int) -> AsyncIterator[bytes]:
        """Yield exactly the requested bytes of the opened file, as fast as they are taken."""
        await self._request(ReadRequest(offset, length))
        left = length
        async for data in self._data():
            left -= len(data)
            if left < 0:
                raise broken_protocol()
            yield data
        if left != 0:
            raise broken_protocol()

    async def write(self, request: WriteRequest, chunks: AsyncIterator[bytes]) -> Written:
        """Replace a file by the data, or make one. The data is taken only if that may succeed."""
        await self._request(request)
        message = await self._send_data(chunks)
        return Written(facts_from(field(message, "facts", dict)), field(message, "created", bool))

    async def delete(self, request: DeleteRequest) -> None:
        async with _limit(_WORK_SECONDS):
            await self._request(request)
            await self._connection.receive_message()

    async def move(self, request: MoveRequest) -> FileFacts:
        async with _limit(_WORK_SECONDS):
            await self._request(request)
            return await self._facts()

    async def make_directory(self, request: DirectoryRequest) -> Written:
        async with _limit(_WORK_SECONDS):
            await self._request(request)
            message = await self._connection.receive_message()
        return Written(facts_from(field(message, "facts", dict)), field(message, "created", bool))

    async def download(self, path: bytes) -> AsyncIterator[bytes]:
        """Begin a tar stream of what is below a path, and return its data."""
        await self._request(DownloadRequest(path))
        await self._connection.receive_message()
        return self._data()

    async def upload(self, path: bytes, chunks: AsyncIterator[bytes]) -> Unpacked:
        """Unpack a tar stream into a directory."""
        await self._request(UploadRequest(path))
        message = await self._send_data(chunks)
        return Unpacked(count_from(message, "entries"), count_from(message, "bytes"))

    async def _request(self, request: Request) -> None:
        await self._connection.send(MESSAGE, write_request(request))

    async def _facts(self) -> FileFacts:
        return facts_from(field(await self._connection.receive_message(), "facts", dict))

    async def _data(self) -> AsyncIterator[bytes]:
        while True:
            kind, payload = await self._connection.receive(DATA, END)
            if kind == END:
                return
            if not payload:
                raise broken_protocol()
            yield payload

    async def _send_data(self, chunks: AsyncIterator[bytes]) -> dict[str, Any]:
        """Send data once the agent is ready for it, and return its answer, which may come early."""
        await self._connection.receive_message()
        answer = asyncio.ensure_future(self._connection.receive(MESSAGE, patient=True))
        try:
            async for chunk in chunks:
                if answer.done():
                    break
                await self._send_pieces(chunk)
            await self._connection.send(END)
            await self._connection.within(asyncio.wait([answer]))
            _, payload = answer.result()
            return parse_message(payload)
        finally:
            answer.cancel()

    async def _send_pieces(self, chunk: bytes) -> None:
        for start in range(0, len(chunk), MAX_DATA):
            await self._connection.send(DATA, chunk[start : start + MAX_DATA])


@contextlib.asynccontextmanager
async def _limit(seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise AgentFailed(f"the workspace did not finish within {seconds:g} s", stalled=True) from error
