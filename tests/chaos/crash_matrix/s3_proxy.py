"""Proxy between a job and its S3 server, in which every request is a step with crash points."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from tests.chaos.crash_matrix.steps import Steps

_MOST = 1 << 20
_BROKEN = (ConnectionError, asyncio.IncompleteReadError)


class ClientKilled(ConnectionAbortedError):  # noqa: N818 - names a fact, not a fault
    """Death of the job that sent the request."""


@dataclass
class Proxy:
    """Relay of whole requests and responses; each cell sets its own `steps`."""

    host: str
    port: int
    steps: Steps | None = None
    endpoint: str = ""

    @classmethod
    @asynccontextmanager
    async def running(cls, upstream: str) -> AsyncIterator["Proxy"]:
        parts = urlsplit(upstream)
        proxy = cls(parts.hostname or "", parts.port or 80)
        server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
        proxy.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield proxy
        finally:
            server.close()

    async def _serve(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        upstream, requests = await asyncio.open_connection(self.host, self.port)
        with suppress(*_BROKEN):
            while request := await _message(client, answers_to=""):
                await self._relay(request, upstream, requests, answers)
        for writer in (requests, answers):
            writer.close()

    async def _relay(
        self,
        request: bytes,
        upstream: asyncio.StreamReader,
        requests: asyncio.StreamWriter,
        answers: asyncio.StreamWriter,
    ) -> None:
        line = request.partition(b"\r\n")[0].decode()
        assert self.steps is not None
        with self.steps.at(_name_of(line)):
            requests.write(request)
            answer = await _message(upstream, answers_to=line.split()[0])
        answers.write(answer)
        await answers.drain()


async def _message(stream: asyncio.StreamReader, answers_to: str) -> bytes:
    """Read one whole message; return nothing if the stream ends before it."""
    try:
        head = await stream.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    if re.search(rb"(?i)\r\ntransfer-encoding:\s*chunked", head):
        return head + await _chunked(stream)
    length = re.search(rb"(?i)\r\ncontent-length:\s*(\d+)", head)
    has_body = length is not None and answers_to != "HEAD"
    return head + (await stream.readexactly(int(length[1])) if length and has_body else b"")


async def _chunked(stream: asyncio.StreamReader) -> bytes:
    body = b""
    while True:
        size = await stream.readuntil(b"\r\n")
        chunk = await stream.readexactly(int(size.split(b";")[0], 16) + 2)
        body += size + chunk
        if chunk == b"\r\n":
            return body


def _name_of(line: str) -> str:
    method, target, _ = line.split()
    parts = urlsplit(target)
    query = parse_qs(parts.query, keep_blank_values=True)
    what = [name for name in ("uploads", "uploadId", "list-type") if name in query]
    if "partNumber" in query:
        what = [f"part {query['partNumber'][0]}"]
    place = "bucket" if parts.path.count("/") < 2 else parts.path.rpartition("/")[2]
    return " ".join([method, place, *what])
