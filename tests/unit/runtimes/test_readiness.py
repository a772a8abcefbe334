"""Readiness: a response of 2xx or 3xx in time, at the gateway's address for the IDE."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from codehub.runtimes import readiness
from tests.waiting import PATIENCE


async def why_not_ready(upstream: str, path: str, within: float = PATIENCE) -> str | None:
    """Check with a timeout that is enough for a busy machine."""
    return await readiness.why_not_ready(upstream, path, within)


@asynccontextmanager
async def server(path: Path, answer: bytes | None) -> AsyncIterator[list[bytes]]:
    """Answer every connection with the same bytes, or never for None."""
    heads: list[bytes] = []
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        if answer is None:
            await done.wait()
        else:
            writer.write(answer)
        writer.close()

    listening = await asyncio.start_unix_server(serve, path)
    try:
        yield heads
    finally:
        done.set()
        listening.close()


@pytest.fixture
def socket_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a relative path, because the length of a socket's path is limited."""
    monkeypatch.chdir(tmp_path)
    return Path("ide.sock")


@pytest.mark.parametrize("status", ["200 OK", "204 No Content", "302 Found", "308"])
async def test_2xx_and_3xx_are_ready(socket_path: Path, status: str) -> None:
    async with server(socket_path, f"HTTP/1.1 {status}\r\n\r\n".encode()) as heads:
        assert await why_not_ready(f"unix:{socket_path}", "/healthz?a=b") is None
    assert heads[0].startswith(b"GET /healthz?a=b HTTP/1.1\r\nHost: ")


@pytest.mark.parametrize("status", ["401", "404 Not Found", "500 Oops", "503 Busy", "100 Continue"])
async def test_other_answers_are_not(socket_path: Path, status: str) -> None:
    async with server(socket_path, f"HTTP/1.1 {status}\r\n\r\n".encode()):
        message = await why_not_ready(f"unix:{socket_path}", "/")
    assert message is not None and status[:3] in message


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-x\r\n", b"x" * 100_000, b"HTTP/1.1 20\r\n"])
async def test_a_response_that_is_not_http_is_not_ready(socket_path: Path, answer: bytes) -> None:
    async with server(socket_path, answer):
        assert await why_not_ready(f"unix:{socket_path}", "/") is not None


async def test_a_server_that_does_not_answer_times_out_and_is_not_ready(socket_path: Path) -> None:
    async with server(socket_path, None):
        assert "within 0.05 s" in (await why_not_ready(f"unix:{socket_path}", "/", within=0.05) or "")


async def test_a_missing_socket_is_not_ready(socket_path: Path) -> None:
    assert "listen" in (await why_not_ready(f"unix:{socket_path}", "/") or "")


async def test_a_dead_socket_is_not_ready(socket_path: Path) -> None:
    async with server(socket_path, b""):
        pass
    assert await why_not_ready(f"unix:{socket_path}", "/") is not None


async def test_over_tcp() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    assert await why_not_ready(f"tcp:127.0.0.1:{port}", "/") is None
    listening.close()
    await listening.wait_closed()
    assert "connection" in (await why_not_ready(f"tcp:127.0.0.1:{port}", "/") or "")
