"""A client that floods many connections, and a workspace that responds with floods.

Run as a module, this file is one of the two in a separate process, so that its processor time does
not count as the gateway's. It prepares all data in advance, and drops all data that it receives.
"""

import asyncio
import contextlib
import json
import ssl
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import cast

import uvloop

from tests.waiting import PATIENCE

BLOB = 64 << 10
RECORDS_AT_ONCE = 2000
TINY_CHUNKS = b"1\r\nx\r\n" * (BLOB // 6)
LONG_LIST = b"GET / HTTP/1.1\r\nHost: unknown\r\nAccept: text/html\r\nAccept-Language: %b\r\n\r\n" % (
    b"x," * 16_000
)
LARGE_CHUNKS = b"fffa\r\n" + b"x" * 0xFFFA + b"\r\n"
EMPTY_FRAMES = b"\x82\x00" * (BLOB // 2)
EMPTY_CLIENT_FRAMES = b"\x82\x80mask" * (BLOB // 6)
LARGE_FRAME = b"\x82\x7f" + BLOB.to_bytes(8) + b"x" * BLOB
LARGE_CLIENT_FRAME = b"\x82\xff" + BLOB.to_bytes(8) + b"\0" * (4 + BLOB)
REPEATED = {
    "": b"",
    "requests": b"GET / HTTP/1.1\r\nHost: unknown\r\n\r\n" * 2000,
    "long lists": LONG_LIST,
    "tiny chunks": TINY_CHUNKS,
    "large chunks": LARGE_CHUNKS,
    "empty frames": EMPTY_CLIENT_FRAMES,
    "large frames": LARGE_CLIENT_FRAME,
}
"""Data that a client repeats without end, by its name."""
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
START = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n"
LONG_HEAD = START + b"Set-Cookie: a=%b; Path=/; HttpOnly; Secure\r\n" % (b"b" * 100) * 32 + b"\r\n"
MANY_FIELDS = START + b"te:\r\n" * 12_000 + b"\r\n"
INTERIM_HEADS = (b"HTTP/1.1 103 Early Hints\r\n" + b"te:\r\n" * 250 + b"\r\n") * 15 + ANSWER
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
BY_PATH = {
    b"/long-heads": (LONG_HEAD, b""),
    b"/many-fields": (MANY_FIELDS, b""),
    b"/interim-heads": (INTERIM_HEADS, b""),
    b"/tiny-chunks": (CHUNKED, TINY_CHUNKS),
    b"/large-chunks": (CHUNKED, LARGE_CHUNKS),
    b"/empty-frames": (SWITCH, EMPTY_FRAMES),
    b"/large-frames": (SWITCH, LARGE_FRAME),
    b"/frames": (SWITCH, b""),
}
"""By path, what a workspace sends once, and what it then repeats without end.

A client may send another request after a response that does not repeat anything.
"""
RECONNECT_AFTER = 1.0
RENEW_AFTER = 30.0


class Sender(asyncio.Protocol):
    """Connection that sends `first`, then repeats `again` as fast as the peer reads."""

    def __init__(self, first: bytes = b"", again: bytes = b"") -> None:
        self._first = first
        self._again = again
        self._is_writable = True
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._send(self._first)

    def _send(self, data: bytes) -> None:
        if data:
            self.transport.write(data)
        if self._again and not self.transport.is_closing():
            asyncio.get_running_loop().call_soon(self._send_again)

    def _send_again(self) -> None:
        if self._is_writable and not self.transport.is_closing():
            self._send(self._again)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._send_again()


class FloodingClient(Sender):
    """Client that counts connections and refusals."""

    def __init__(self, first: bytes, again: bytes, report: "Report") -> None:
        super().__init__(first, again)
        self._report = report

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._report.connected += 1
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"HTTP/1.1 429 "):
            self._report.refused += 1


class RecordSender(Sender):
    """TLS connection that sends `first`, then one byte in each record."""

    def __init__(self, first: bytes, context: ssl.SSLContext) -> None:
        super().__init__(again=b"x")
        self._received, self._encrypted = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._encrypted)
        self._request = first
        self.shaken = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._shake_hands()

    def data_received(self, data: bytes) -> None:
        if not self.shaken.done():
            self._received.write(data)
            self._shake_hands()

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
            self.shaken.set_result(None)
        except ssl.SSLWantReadError:
            self.transport.write(self._encrypted.read())
            return
        self._tls.write(self._request)
        self._send(self._encrypted.read())

    def _send_again(self) -> None:
        if self._is_writable:  # a record that is encrypted has to be sent
            for _ in range(RECORDS_AT_ONCE):
                self._tls.write(b"x")
            self._again = self._encrypted.read()
        super()._send_again()


class FloodingWorkspace(Sender):
    """Server whose response depends on the path. It drops the bodies of requests."""

    def __init__(self) -> None:
        super().__init__()
        self._drops_input = False

    def data_received(self, data: bytes) -> None:
        if self._drops_input:
            return
        method, path, *_ = data.split(b" ", 2)
        if method == b"GET":
            once, self._again = BY_PATH.get(path, (ANSWER, b""))
            self._send(once)
        self._drops_input = method != b"GET" or path == b"/frames"


@dataclass(frozen=True)
class Flood:
    """The data that each connection of a flooding client sends."""

    port: int
    count: int
    first: str
    again: str
    """The name of what it then repeats, "first" to repeat that, or "records" for TLS records of one byte."""
    source: str = "127.0.0.2"
    """Not the address of the clients that the flood must not delay."""
    tls: bool = False
    reads: bool = True


@dataclass
class Report:
    """What the connections of a flood met so far."""

    connected: int = 0
    refused: int = 0
    """Data that began with a 429: for clients that send nothing, refused connections."""


_tasks: set[asyncio.Task[None]] = set()
"""The event loop keeps only weak references to tasks."""


async def _flood(flood: Flood, report: Report) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    first = flood.first.encode()
    again = first * 100 if flood.again == "first" else REPEATED.get(flood.again, b"")
    loop = asyncio.get_running_loop()

    async def connect() -> Sender:
        _, client = await loop.create_connection(
            lambda: FloodingClient(first, again, report), "127.0.0.1", flood.port,
            local_addr=(flood.source, 0), ssl=context if flood.tls else None,
        )  # fmt: skip
        if not flood.reads:
            client.transport.pause_reading()
        return client

    async def keep_connected(client: Sender) -> None:
        """Connect again when a connection ends. One that reads nothing does not notice, so renew it."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(client.lost.wait(), None if flood.reads else RENEW_AFTER)
            client.transport.abort()
            await asyncio.sleep(RECONNECT_AFTER)
            with contextlib.suppress(OSError):
                client = await connect()

    for _ in range(flood.count):
        if flood.again == "records":
            _, sender = await loop.create_connection(
                lambda: RecordSender(first, context), "127.0.0.1", flood.port, local_addr=(flood.source, 0)
            )
            await sender.shaken
        else:
            _tasks.add(loop.create_task(keep_connected(await connect())))


async def _main(role: str, options: str) -> None:
    report = Report()
    if role == "flood":
        await _flood(Flood(**json.loads(options)), report)
    else:
        await asyncio.get_running_loop().create_unix_server(FloodingWorkspace, options)
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    print(json.dumps(asdict(report)), flush=True)


@contextlib.asynccontextmanager
async def _process(role: str, options: str) -> AsyncIterator[int]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __spec__.name, role, options,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert await asyncio.wait_for(process.stdout.readline(), PATIENCE) == b"ready\n"
        yield process.pid
    finally:
        process.kill()
        await process.wait()


def flood_process(flood: Flood) -> contextlib.AbstractAsyncContextManager[int]:
    """Run a flooding client. The value is the id of its process."""
    return _process("flood", json.dumps(asdict(flood)))


def workspace_process(path: str) -> contextlib.AbstractAsyncContextManager[int]:
    """Run a `FloodingWorkspace` on this socket. The value is the id of its process."""
    return _process("workspace", path)


if __name__ == "__main__":
    uvloop.run(_main(*sys.argv[1:]))
