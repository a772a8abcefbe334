"""Tiny TLS records: a few are decrypted in one callback, and the rest in later turns."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from codehub.gateway import tls_records
from codehub.gateway.http1.client_connection import ClientConnection
from codehub.gateway.tls_records import RECORDS
from tests.integration.gateway import issuing
from tests.integration.gateway.harness import MINE, Upstream, World, status, world
from tests.waiting import PATIENCE, until


class RecordClient:
    """TLS client that decides which records it sends, and which of them at once."""

    def __init__(self, made: World, context: ssl.SSLContext) -> None:
        self._made = made
        self.context = context
        self._received, self._encrypted = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._encrypted, server_hostname="localhost")

    async def connect(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._made.gateway.port)
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._writer.write(self._encrypted.read())
                self._received.write(await asyncio.wait_for(self._reader.read(1 << 16), PATIENCE))
        self._writer.write(self._encrypted.read())

    def send(self, *records: bytes) -> None:
        for record in records:
            self._tls.write(record)
        self._writer.write(self._encrypted.read())

    async def head(self) -> str:
        data = b""
        while b"\r\n\r\n" not in data:
            try:
                data += self._tls.read(1 << 16)
            except ssl.SSLWantReadError:
                received = await asyncio.wait_for(self._reader.read(1 << 16), PATIENCE)
                assert received, "the connection ended before the response"
                self._received.write(received)
        return data.decode()

    def close(self) -> None:
        self._writer.close()


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[World]:
    files = issuing.issue(tmp_path, "served", names=f"DNS:localhost,DNS:{MINE}.localhost")
    async with world(scheme="https", tls=files) as made:
        yield made


@pytest.fixture
async def client(secured: World, tmp_path: Path) -> AsyncIterator[RecordClient]:
    made = RecordClient(secured, ssl.create_default_context(cafile=str(tmp_path / "served.pem")))
    await made.connect()
    yield made
    made.close()


async def test_records_of_one_byte_are_decrypted_a_few_a_turn_and_all_arrive(
    secured: World, client: RecordClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, pieces, bodies = 20_000, [], []
    receive = ClientConnection.data_received

    def record(connection: ClientConnection, data: bytes) -> None:
        pieces.append(len(data))
        receive(connection, data)

    async def read_all(
        upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await upstream.read_head(reader)
        bodies.append(await reader.readexactly(size))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await reader.read()

    secured.ide.script = read_all
    monkeypatch.setattr(ClientConnection, "data_received", record)
    client.send(secured.request("/", "POST", more=f"Content-Length: {size}\r\n").encode())
    await until(lambda: secured.ide.heads, "the request to be relayed")
    pieces.clear()
    body = bytes(number % 251 for number in range(size))
    client.send(*(bytes((byte,)) for byte in body))
    assert status(await client.head()) == 200
    assert bodies == [body]
    assert max(pieces) <= RECORDS


async def test_a_body_in_full_records_arrives(secured: World, client: RecordClient) -> None:
    size = 4 << 20

    async def read_all(
        upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await upstream.read_head(reader)
        await reader.readexactly(size)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await reader.read()

    secured.ide.script = read_all
    client.send(secured.request("/", "POST", more=f"Content-Length: {size}\r\n").encode())
    client.send(*[b"x" * 16384] * (size >> 14))
    assert status(await client.head()) == 200


async def test_small_records_behind_a_refused_request_do_not_cost_its_response(
    secured: World, client: RecordClient
) -> None:
    request = f"POST / HTTP/1.1\r\nHost: unknown\r\nContent-Length: {10**6}\r\n\r\n".encode()
    client.send(request, *[b"x" * 100] * (tls_records.DISCARDED // 2))
    await until(lambda: any(each.transport.is_closing() for each in secured.connections), "the response")
    client.send(*[b"x" * 100] * (tls_records.DISCARDED // 4))
    assert status(await client.head()) == 421
    (closing,) = secured.connections
    another = RecordClient(secured, client.context)
    await another.connect()
    another.send(secured.request().encode())
    assert status(await another.head()) == 200
    assert closing in secured.connections  # it still discards what the client sends
    another.close()


async def test_a_flood_of_records_on_a_connection_that_is_closed_ends_it(
    secured: World, client: RecordClient
) -> None:
    request = f"POST / HTTP/1.1\r\nHost: unknown\r\nContent-Length: {10**6}\r\n\r\n".encode()
    client.send(request, *[b"x"] * (10 * tls_records.DISCARDED))
    await until(lambda: not secured.gateway._connections, "the connection to end")
