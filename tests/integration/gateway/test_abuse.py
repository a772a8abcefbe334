"""The gateway refuses smuggled, slow and oversized requests, and too many connections."""

import asyncio
import ssl
from ipaddress import ip_network
from pathlib import Path

import pytest

from codehub.gateway.address_limits import LOOPBACK_SHARES
from codehub.gateway.http1.request_head import MAX_HEAD
from codehub.gateway.trusted_proxies import TrustedProxies
from tests.integration.gateway import issuing
from tests.integration.gateway.harness import NEVER, Client, Upstream, World, header, status, world
from tests.waiting import until

BODY = "a body"
READ = 256 << 10
"""Bytes that uvloop reads at a time."""


@pytest.mark.parametrize(
    "more",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding: \x0bchunked\r\n",
        "X: a\r\n b\r\n",
        "Host: other\r\n",
        "X: \x00\r\n",
    ],
)
async def test_an_ambiguous_request_is_a_400_and_no_upstream_gets_a_byte(
    origin_mode: World, more: str
) -> None:
    client = await origin_mode.connect()
    client.send(
        origin_mode.request("/", "POST", more=more) + "0\r\n\r\nGET /admin HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    head, _ = await client.response()
    assert status(head) == 400
    assert await client.rest() == b""
    assert not origin_mode.ide.connections and not origin_mode.api.connections


async def test_a_head_with_bare_line_feeds_is_refused_at_once(origin_mode: World) -> None:
    head, _ = await origin_mode.ask(f"GET / HTTP/1.1\nHost: {origin_mode.host}\n\n")
    assert status(head) == 400  # not a 408 after the timeout


async def test_an_oversized_head_is_refused(origin_mode: World) -> None:
    head, _ = await origin_mode.ask(origin_mode.request(more="X: " + "a" * 70_000 + "\r\n"))
    assert status(head) == 400
    client = await origin_mode.connect()
    client.send("GET / HTTP/1.1\r\nX: " + "a" * 70_000)
    assert status((await client.response())[0]) == 400


async def test_a_head_just_below_the_limit_passes(origin_mode: World) -> None:
    assert (
        status((await origin_mode.ask(origin_mode.request(more="X: " + "a" * (MAX_HEAD - 2000) + "\r\n")))[0])
        == 200
    )


async def test_an_incomplete_head_is_a_408_after_its_timeout(origin_mode: World) -> None:
    client = await origin_mode.connect()
    client.send("GET / HTTP/1.1\r\nHost: x\r\n")
    await until(lambda: any(each._buffer for each in origin_mode.connections), "the head to begin")
    origin_mode.elapse()
    head, _ = await client.response()
    assert status(head) == 408
    assert not origin_mode.ide.connections


async def test_a_connection_that_sends_nothing_is_closed(origin_mode: World) -> None:
    client = await origin_mode.connect()
    await until(lambda: origin_mode.gateway._connections, "the connection")
    origin_mode.elapse()
    assert await client.rest() == b""
    await until(lambda: not origin_mode.gateway._connections, "the connection to be removed")


async def test_the_deadline_of_a_head_does_not_move_with_each_byte(origin_mode: World) -> None:
    client = await origin_mode.connect()
    client.send(origin_mode.request())
    await client.response()
    (connection,) = origin_mode.connections
    for sent in (b"GET / HTTP/1.1\r\nX-Slow: ", b"a", b"a"):
        client.send(sent)
        await until(lambda sent=sent: connection._buffer.endswith(sent), "the gateway to read it")
        origin_mode.elapse(NEVER * 0.4)
    assert status(await client.head()) == 408


async def test_unread_responses_do_not_pile_up(origin_mode: World) -> None:
    """A client sends many small requests with large responses, and does not read."""
    count, request = 5000, b"GET / HTTP/1.1\r\nHost: elsewhere\r\nAccept: text/html\r\n\r\n"
    client = await origin_mode.connect()
    client.send(request * count)
    await until(lambda: origin_mode.gateway._connections, "the connection")
    (connection,) = origin_mode.connections
    await until(lambda: connection._held_for_buffer, "the gateway to stop reading")
    assert connection.transport.get_write_buffer_size() < 1_000_000
    for _ in range(count):
        assert status((await client.response())[0]) == 421
    client.send(origin_mode.request())
    assert (await client.response())[1] == b"hello"


async def open_from(made: World, address: str, tls: ssl.SSLContext | None = None) -> Client:
    name = "localhost" if tls else None
    return Client(
        *await asyncio.open_connection(
            "127.0.0.1", made.gateway.port, local_addr=(address, 0), ssl=tls, server_hostname=name
        )
    )


async def test_one_address_gets_at_most_its_share_of_connections() -> None:
    async with world(max_connections=100, max_connections_per_address=2) as made:
        share = 2 * LOOPBACK_SHARES
        clients = [await open_from(made, "127.0.0.2") for _ in range(2 * share)]
        for refused in clients[share:]:
            head, body = await refused.response()
            assert status(head) == 429 and header(head, "connection") == "close"
            assert b"from your network" in body
        assert (
            await (await open_from(made, "127.0.0.2")).rest() == b""
        )  # above twice the share, without a response
        clients.append(await open_from(made, "127.0.0.3"))
        for client in (*clients[:share], clients[-1]):
            client.send(made.request())
            assert status((await client.response())[0]) == 200
        for client in clients:
            client.close()
        await until(lambda: not made.gateway._connections, "all connections to be removed")
        client = await open_from(made, "127.0.0.2")
        client.send(made.request())
        assert status((await client.response())[0]) == 200


async def test_connections_without_a_handshake_count_towards_the_share(tmp_path: Path) -> None:
    files = issuing.issue(tmp_path, "served", names="DNS:localhost")
    async with world(scheme="https", tls=files, max_connections=100, max_connections_per_address=2) as made:
        share = 2 * LOOPBACK_SHARES
        silent = [await open_from(made, "127.0.0.2") for _ in range(share)]
        assert await (await open_from(made, "127.0.0.2")).rest() == b""
        trusted = ssl.create_default_context(cafile=str(files.chain))
        client = await open_from(made, "127.0.0.3", trusted)
        client.send(f"GET /x HTTP/1.1\r\nHost: {made.platform}\r\n\r\n")
        assert (await client.response())[1] == b"hello"
        for each in silent:
            each.close()
        await until(
            lambda: not made.gateway.handshakes._shares["127.0.0.2"].connections, "the handshakes to end"
        )
        client = await open_from(made, "127.0.0.2", trusted)
        client.send(f"GET /x HTTP/1.1\r\nHost: {made.platform}\r\n\r\n")
        assert (await client.response())[1] == b"hello"


async def test_a_trusted_proxy_may_open_any_number_of_connections() -> None:
    proxies = TrustedProxies([ip_network("127.0.0.2/32")])
    async with world(max_connections_per_address=1, trusted_proxies=proxies) as made:
        for _ in range(3 * LOOPBACK_SHARES):
            client = await open_from(made, "127.0.0.2")
            client.send(made.request())
            assert status((await client.response())[0]) == 200


async def test_pipelined_requests_with_bodies_do_not_pile_up(origin_mode: World) -> None:
    async def drop_body(
        upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            await upstream.read_head(reader)
            await reader.readexactly(len(BODY))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    origin_mode.ide.script = drop_body
    client = await origin_mode.connect()
    one = origin_mode.request("/", "POST", more=f"Content-Length: {len(BODY)}\r\n") + BODY
    client.send(one * ((8 << 20) // len(one)))
    most = 0
    for _ in range(100):
        assert status((await client.response())[0]) == 200
        most = max(most, *(len(each._buffer) for each in origin_mode.connections))
    assert most <= MAX_HEAD + 2 * READ
    client.close()
