"""WebSockets of a real server, with clients that answer no pings, do not read, or send many frames."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import ConnectionClosed

from codehub.asgi import websocket_protocol
from codehub.asgi.server import MAX_WEBSOCKET_MESSAGE
from codehub.asgi.uvicorn_protocol import ApiProtocol
from codehub.asgi.websocket_protocol import WebSocketProtocol
from tests.waiting import PATIENCE, until

PING, PONG = 0.05, 0.2
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
Application = Callable[[Any, Any, Any], Any]


class App:
    """An application that accepts, and reads messages while `reads` is set."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.received: list[dict[str, Any]] = []
        self.protocols: list[WebSocketProtocol] = []
        self.to_send = b""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.protocols.append(receive.__self__)
        await receive()
        await send({"type": "websocket.accept"})
        if self.to_send:
            while True:
                await send({"type": "websocket.send", "bytes": self.to_send})
        while not self.received or self.received[-1]["type"] != "websocket.disconnect":
            await self.reads.wait()
            self.received.append(await receive())


@contextlib.asynccontextmanager
async def serving(app: App, tmp_path: Path) -> AsyncIterator[str]:
    path = str(tmp_path / "s")
    config = uvicorn.Config(
        app, uds=path, http=ApiProtocol, ws=WebSocketProtocol, ws_max_size=MAX_WEBSOCKET_MESSAGE,
        ws_per_message_deflate=False, ws_ping_interval=PING, ws_ping_timeout=PONG, lifespan="off",
        log_config=None, timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    server.config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        yield path
    finally:
        await server.shutdown()


@contextlib.asynccontextmanager
async def raw_client(path: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(UPGRADE)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        yield reader, writer
    finally:
        writer.transport.abort()


def connect(path: str) -> Any:
    return unix_connect(path, uri="ws://localhost/", ping_interval=None, compression=None)


async def test_a_client_that_answers_no_pings_is_aborted_even_if_it_does_not_read(tmp_path: Path) -> None:
    for sends in (b"", bytes(MAX_WEBSOCKET_MESSAGE)):
        app = App()
        app.reads.set()
        app.to_send = sends
        async with serving(app, tmp_path), raw_client(str(tmp_path / "s")):
            await until(lambda app=app: app.protocols and app.protocols[0].disconnected, "the abort")


async def test_a_client_is_not_taken_for_gone_while_the_application_does_not_read(tmp_path: Path) -> None:
    app = App()
    async with serving(app, tmp_path) as path:
        client: ClientConnection
        async with connect(path) as client:
            await client.send(b"first")
            await client.send(b"second")
            protocol = await _protocol(app)
            pinged = 0

            def count() -> None:
                nonlocal pinged
                pinged += 1
                send_ping()

            send_ping = protocol.send_keepalive_ping
            protocol.send_keepalive_ping = count  # type: ignore[method-assign]
            await until(lambda: pinged > 2 * (PONG // PING), "several pings")
            assert not protocol.disconnected and protocol.read_paused
            app.reads.set()
            await until(lambda: len(app.received) == 2, "the messages")
        await until(lambda: app.received[-1]["type"] == "websocket.disconnect", "the end")
    assert [message.get("bytes") for message in app.received] == [b"first", b"second", None]


async def _protocol(app: App) -> WebSocketProtocol:
    await until(lambda: app.protocols, "the connection")
    return app.protocols[0]


async def test_few_of_many_tiny_messages_are_in_memory_and_all_arrive_in_order(tmp_path: Path) -> None:
    app, count = App(), 30_000
    async with serving(app, tmp_path) as path, raw_client(path) as (_, writer):
        writer.write(b"".join(b"\x82\x81\0\0\0\0%c" % (number % 256) for number in range(count)))
        writer.write(b"\x88\x80\0\0\0\0")
        protocol = await _protocol(app)
        await until(lambda: protocol.read_paused, "the first messages")
        assert protocol.queue.qsize() <= websocket_protocol._PARSED_BYTES // 7 + 1
        app.reads.set()
        await until(lambda: len(app.received) == count + 1, "all messages")
    expected = [bytes([number % 256]) for number in range(count)]
    assert [message["bytes"] for message in app.received[:-1]] == expected


async def test_empty_fragments_take_no_memory(tmp_path: Path) -> None:
    app = App()
    app.reads.set()
    async with serving(app, tmp_path) as path, raw_client(path) as (_, writer):
        writer.write(b"\x02\x81\0\0\0\0a" + b"\x00\x80\0\0\0\0" * 10_000)
        await writer.drain()
        protocol = await _protocol(app)
        writer.write(b"\x80\x81\0\0\0\0b")
        await until(lambda: app.received, "the message")
        assert app.received[0]["bytes"] == b"ab" and protocol.frames == []


async def test_too_large_a_message_and_bad_text_close_the_connection(tmp_path: Path) -> None:
    for sent, code in ((bytes(MAX_WEBSOCKET_MESSAGE + 1), 1009), ("a", None)):
        app = App()
        app.reads.set()
        async with serving(app, tmp_path) as path, connect(path) as client:
            await client.send(sent)
            if code is None:
                await until(lambda app=app: app.received, "the text")
                continue
            with pytest.raises(ConnectionClosed):
                await asyncio.wait_for(client.recv(), PATIENCE)
            assert client.close_code == code
