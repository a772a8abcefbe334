"""Relaying: framing, reuse of connections, failures and flow control."""

import asyncio
import socket
import struct
from dataclasses import replace
from ipaddress import ip_network

import pytest
import structlog.testing
import uvloop

from codehub.domain.internal_key_header import INTERNAL_KEY
from codehub.gateway.trusted_proxies import TrustedProxies
from tests.integration.gateway.harness import (
    LONG_TIMEOUTS,
    MINE,
    NAVIGATE,
    NEVER,
    Upstream,
    World,
    check_slow_readers,
    header,
    headers,
    respond_with,
    status,
    wait_for_backpressure,
    world,
)
from tests.waiting import PATIENCE, until


async def test_the_loop_is_uvloop() -> None:
    assert isinstance(asyncio.get_running_loop(), uvloop.Loop)


async def test_a_request_and_its_response_are_relayed(origin_mode: World) -> None:
    head, body = await origin_mode.ask(origin_mode.request("/a/b?c=d"))
    assert (status(head), body) == (200, b"hello")
    seen = origin_mode.ide.heads[0].decode()
    assert seen.startswith("GET /a/b?c=d HTTP/1.1\r\n")
    assert header(seen, "host") == origin_mode.host
    assert header(seen, "x-forwarded-host") == origin_mode.host
    assert header(seen, "x-forwarded-for") == "127.0.0.1"
    assert header(seen, "x-forwarded-proto") == "http"


async def test_other_paths_go_to_the_api_with_the_clients_address(origin_mode: World) -> None:
    request = (
        f"GET /x HTTP/1.1\r\nHost: {origin_mode.platform}\r\n"
        "X-Forwarded-For: 9.9.9.9\r\nCookie: session=s\r\n\r\n"
    )
    head, _ = await origin_mode.ask(request)
    assert status(head) == 200
    seen = origin_mode.api.heads[0].decode()
    assert headers(seen, "x-forwarded-for") == ["127.0.0.1"]
    assert header(seen, "cookie") == "session=s"
    assert header(seen, "host") == origin_mode.platform


async def test_a_trusted_proxy_names_the_client() -> None:
    async with world(trusted_proxies=TrustedProxies([ip_network("127.0.0.1")])) as made:
        await made.ask(
            f"GET / HTTP/1.1\r\nHost: {made.platform}\r\nX-Forwarded-For: 1.1.1.1, 9.9.9.9\r\n\r\n"
        )
        assert headers(made.api.heads[0].decode(), "x-forwarded-for") == ["9.9.9.9"]


@pytest.mark.parametrize(
    ("entry", "client"),
    [
        ("203.0.113.9:51234", "203.0.113.9"),
        ("9.9.9.9, [2001:db8::1]:51234", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("2001:db8::1", "2001:db8::1"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("unknown", "127.0.0.1"),
        ("9.9.9.9, ", "127.0.0.1"),
        ("[2001:db8::1", "2001:db8::1"),
        ("203.0.113.9:1:2", "127.0.0.1"),
    ],
)
async def test_a_client_keeps_its_address_without_the_port_that_a_proxy_appends(
    entry: str, client: str
) -> None:
    async with world(trusted_proxies=TrustedProxies([ip_network("127.0.0.1")])) as made:
        await made.ask(f"GET / HTTP/1.1\r\nHost: {made.platform}\r\nX-Forwarded-For: {entry}\r\n\r\n")
        assert headers(made.api.heads[0].decode(), "x-forwarded-for") == [client]


def test_a_proxy_that_names_no_address_is_reported_once() -> None:
    proxies = TrustedProxies([ip_network("127.0.0.1")])
    with structlog.testing.capture_logs() as logged:
        for entry in (b"192.0.2.1:1", b"unknown", b"also unknown"):
            proxies.client_address("127.0.0.1", entry)
    assert [(line["log_level"], line["entry"]) for line in logged] == [("warning", "unknown")]


async def test_only_the_api_gets_the_internal_key_and_no_client_can_set_it() -> None:
    async with world(internal_key="k" * 32) as made:
        forged = f"{INTERNAL_KEY}: {'t' * 32}\r\nX_CodeHub_Internal_Key: {'t' * 32}\r\n"
        await made.ask(f"GET / HTTP/1.1\r\nHost: {made.platform}\r\n{forged}\r\n")
        seen = made.api.heads[0].decode()
        assert headers(seen, INTERNAL_KEY) == ["k" * 32]
        assert "t" * 32 not in seen
        await made.ask(made.request("/").replace("\r\n\r\n", f"\r\n{forged}\r\n"))
        assert "internal" not in made.ide.heads[0].decode().lower()


async def test_client_and_upstream_connections_are_kept_alive(origin_mode: World) -> None:
    client = await origin_mode.connect()
    for _ in range(5):
        client.send(origin_mode.request())
        assert (await client.response())[1] == b"hello"
    assert origin_mode.ide.connections == 1
    client.close()


async def test_pipelined_requests_are_answered_in_order(origin_mode: World) -> None:
    async def echo_path(
        upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            target = (await upstream.read_head(reader)).split(b" ")[1]
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(target), target))

    origin_mode.ide.script = echo_path
    client = await origin_mode.connect()
    client.send("".join(origin_mode.request(f"/{n}") for n in range(20)))
    assert [(await client.response())[1] for _ in range(20)] == [f"/{n}".encode() for n in range(20)]
    client.close()


async def test_bodies_pass_both_ways_chunked_and_by_length(origin_mode: World) -> None:
    async def echo(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await upstream.read_head(reader)
            if b"transfer-encoding: chunked" in head:
                body = await reader.readuntil(b"0\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
            else:
                length = int(header(head.decode(), "content-length") or 0)
                body = await reader.readexactly(length)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (length, body))

    origin_mode.ide.script = echo
    client = await origin_mode.connect()
    client.send(origin_mode.request("/", "POST", more="Transfer-Encoding: chunked\r\n"))
    client.send("5\r\nhello\r\n")
    client.send("6;x=y\r\n world\r\n0\r\n\r\n")
    assert header(await client.head(), "transfer-encoding") == "chunked"
    assert await client.reader.readuntil(b"0\r\n\r\n") == b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n"
    client.send(origin_mode.request("/", "PUT", more="Content-Length: 4\r\n") + "data")
    assert (await client.response())[1] == b"data"
    client.close()


async def test_head_204_and_304_have_no_body_and_keep_the_connection(origin_mode: World) -> None:
    answers = [
        b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 999\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    ]

    async def script(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await upstream.read_head(reader)
            writer.write(answer)

    origin_mode.ide.script = script
    client = await origin_mode.connect()
    for method in ("HEAD", "GET", "GET"):
        client.send(origin_mode.request("/", method))
        await client.head()
    client.send(origin_mode.request())
    assert status(await client.head()) == 103
    assert (await client.response())[1] == b"ok"
    assert origin_mode.ide.connections == 1
    client.close()


async def test_a_response_without_length_ends_with_its_connection(origin_mode: World) -> None:
    async def script(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_head(reader)
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nall of it")

    origin_mode.ide.script = script
    head, body = await origin_mode.ask(origin_mode.request())
    assert header(head, "connection") == "close"
    assert body == b"all of it"


async def test_a_truncated_response_does_not_look_complete(origin_mode: World) -> None:
    async def script(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart")
        await writer.drain()

    origin_mode.ide.script = script
    client = await origin_mode.connect()
    client.send(origin_mode.request())
    await client.head()
    assert len(await client.rest()) < 100
    assert origin_mode.ide.connections == 1


async def test_a_stale_kept_alive_connection_is_retried_once_and_only_for_safe_requests(
    origin_mode: World,
) -> None:
    async def once(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        await upstream.read_head(reader)  # reads the second request, and closes without a response

    origin_mode.ide.script = once
    client = await origin_mode.connect()
    for _ in range(2):
        client.send(origin_mode.request())
        assert (await client.response())[1] == b"ok"
    assert origin_mode.ide.connections == 2
    client.send(origin_mode.request("/", "POST", more="Content-Length: 0\r\n"))
    assert (await client.response())[1] == b"ok"
    assert origin_mode.ide.connections == 3  # a POST always gets a new connection
    client.close()


async def test_a_dead_upstream_is_a_502_page(origin_mode: World) -> None:
    await origin_mode.ide.stop()
    origin_mode.ide.path.unlink(missing_ok=True)
    head, body = await origin_mode.ask(origin_mode.request(more=NAVIGATE))
    assert status(head) == 502
    assert b"<h1>" in body
    head, body = await origin_mode.ask(origin_mode.request())
    assert status(head) == 502
    assert b"UPSTREAM_UNAVAILABLE" in body


async def test_an_upstream_that_never_responds_is_a_504(origin_mode: World) -> None:
    async def silent(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_head(reader)
        await reader.read()

    origin_mode.ide.script = silent
    client = await origin_mode.connect()
    client.send(origin_mode.request())
    await until(lambda: origin_mode.ide.heads, "the request")
    origin_mode.elapse()
    assert status((await client.response())[0]) == 504
    await until(lambda: origin_mode.ide.open == 0, "the upstream connection to be closed")
    client.close()


async def test_an_answer_with_too_many_fields_is_a_502_that_names_them(origin_mode: World) -> None:
    origin_mode.ide.script = respond_with(b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 300 + b"\r\n")
    for more, text in (
        (NAVIGATE, b"<h1>The workspace answered with too many header fields</h1>"),
        ("", b"{"),
    ):
        head, body = await origin_mode.ask(origin_mode.request(more=more))
        assert status(head) == 502 and text in body and b"too many header fields" in body


async def test_garbage_from_an_upstream_is_a_502(origin_mode: World) -> None:
    for garbage in (
        b"SSH-2.0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\nSet-Cookie: session=evil\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
    ):
        origin_mode.ide.script = respond_with(garbage)
        head, _ = await origin_mode.ask(origin_mode.request())
        assert status(head) == 502, garbage


async def test_bytes_after_a_response_never_become_the_next_one(origin_mode: World) -> None:
    origin_mode.ide.script = respond_with(
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
    )
    client = await origin_mode.connect()
    for _ in range(3):
        client.send(origin_mode.request())
        assert (await client.response())[1] == b"ok"
    client.close()


async def test_a_client_that_disconnects_closes_the_upstream_at_once(origin_mode: World) -> None:
    async def endless(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        await reader.read()

    origin_mode.ide.script = endless
    client = await origin_mode.connect()
    client.send(origin_mode.request())
    await client.head()
    assert origin_mode.ide.open == 1
    client.close()
    await until(lambda: origin_mode.ide.open == 0, "the upstream connection to be closed")


async def test_a_response_without_a_length_that_breaks_off_does_not_look_complete(origin_mode: World) -> None:
    """Only a reset instead of an orderly close shows that the response is incomplete."""

    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhalf")
        await writer.drain()
        await begun.wait()
        no_linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)
        writer.transport.abort()

    begun = asyncio.Event()
    server = await asyncio.start_server(break_off, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    origin_mode.facts.routes[MINE] = replace(origin_mode.facts.routes[MINE], upstream=f"tcp:127.0.0.1:{port}")
    client = await origin_mode.connect()
    client.send(origin_mode.request())
    assert "200 OK" in await client.head()
    assert await client.reader.readexactly(4) == b"half"
    begun.set()
    with pytest.raises(ConnectionResetError):
        await client.reader.read()
    client.close()
    server.close()


async def test_a_slow_client_pauses_its_upstream(origin_mode: World) -> None:
    sent = 0

    async def flood(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await upstream.read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 268435456\r\n\r\n")
        for _ in range(4096):
            writer.write(b"x" * 65536)
            await writer.drain()
            sent += 65536

    origin_mode.ide.script = flood
    client = await origin_mode.connect()
    client.send(origin_mode.request())
    await client.head()
    await wait_for_backpressure(origin_mode, lambda: sent)
    assert sent < 100_000_000
    got = 0
    while got < 268435456:
        piece = await asyncio.wait_for(client.reader.read(1 << 20), PATIENCE)
        assert piece
        got += len(piece)
    client.close()


async def test_each_slow_reader_receives_its_own_response(origin_mode: World) -> None:
    await check_slow_readers(origin_mode, [await origin_mode.connect() for _ in range(4)])


async def test_a_slow_upstream_pauses_its_client(origin_mode: World) -> None:
    go = asyncio.Event()

    async def slow(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_head(reader)
        await go.wait()
        left = 64 << 20
        while left:
            left -= len(await reader.read(1 << 20))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone")

    origin_mode.ide.script = slow
    client = await origin_mode.connect()
    client.send(origin_mode.request("/", "POST", more=f"Content-Length: {64 << 20}\r\n"))
    for _ in range(64):
        client.send(b"y" * (1 << 20))
    held = lambda: any(each._held_for_upstream for each in origin_mode.connections)  # noqa: E731
    await until(held, "the client to be paused")
    assert client.writer.transport.get_write_buffer_size() > 16 << 20  # type: ignore[attr-defined]
    go.set()
    assert (await client.response())[1] == b"done"
    client.close()


async def test_an_early_response_reaches_a_client_that_is_still_sending(origin_mode: World) -> None:
    async def refuse(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_head(reader)
        writer.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        await reader.read()

    origin_mode.ide.script = refuse
    client = await origin_mode.connect()
    client.send(origin_mode.request("/", "POST", more="Content-Length: 100000000\r\n") + "x" * 1000)
    head, body = await client.response()
    assert (status(head), body) == (413, b"no")
    assert header(head, "connection") == "close"  # because the rest of the body is not read
    assert await client.rest() == b""


async def test_expect_continue_passes_through(origin_mode: World) -> None:
    async def script(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_head(reader)
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(4)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n" + body)

    origin_mode.ide.script = script
    client = await origin_mode.connect()
    client.send(origin_mode.request("/", "POST", more="Content-Length: 4\r\nExpect: 100-continue\r\n"))
    assert status(await client.head()) == 100
    client.send("body")
    assert (await client.response())[1] == b"body"
    client.close()


async def test_an_invalid_chunk_closes_the_upstream(origin_mode: World) -> None:
    async def script(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_head(reader)
        await reader.read()

    origin_mode.ide.script = script
    client = await origin_mode.connect()
    client.send(origin_mode.request("/", "POST", more="Transfer-Encoding: chunked\r\n"))
    await until(lambda: origin_mode.ide.open == 1, "the request")
    client.send("5\r\nhelloGET / HTTP/1.1\r\n\r\n")
    assert status((await client.response())[0]) == 400
    await until(lambda: origin_mode.ide.open == 0, "the upstream connection to be closed")


async def test_http_1_0_clients_are_answered_and_closed(origin_mode: World) -> None:
    request = origin_mode.request().replace("HTTP/1.1", "HTTP/1.0")
    client = await origin_mode.connect()
    client.send(request)
    assert (await client.rest()).endswith(b"hello")
    assert origin_mode.ide.heads[0].startswith(b"GET / HTTP/1.0\r\n")


async def test_cookies_are_relayed_and_hop_by_hop_fields_are_not(origin_mode: World) -> None:
    origin_mode.ide.script = respond_with(
        b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1; Path=/\r\nSet-Cookie: b=2\r\nSet-Cookie: session=evil\r\n"
        b"Set-Cookie: c=3; Domain=localhost\r\nSet-Cookie: =session=evil\r\nClear-Site-Data: *\r\n"
        b"Connection: keep-alive, X-Hop\r\nKeep-Alive: timeout=5\r\nX-Hop: 1\r\nX-End: 2\r\n"
        b"Content-Length: 0\r\n\r\n"
    )
    head, _ = await origin_mode.ask(
        origin_mode.request(more="Connection: X-Mine\r\nX-Mine: 1\r\nTE: trailers\r\nX-Other: 2\r\n")
    )
    assert headers(head, "set-cookie") == ["a=1; Path=/", "b=2"]
    for name in ("clear-site-data", "keep-alive", "x-hop", "connection"):
        assert header(head, name) is None
    assert header(head, "x-end") == "2"
    seen = origin_mode.ide.heads[0].decode()
    assert header(seen, "x-mine") is None
    assert header(seen, "te") is None
    assert header(seen, "x-other") == "2"


async def test_credentials_of_the_platform_never_reach_a_workspace(origin_mode: World) -> None:
    more = "Cookie: x=1; session=SECRET; __Host-session=SECRET\r\nAuthorization: Bearer chub_SECRET\r\n"
    await origin_mode.ask(origin_mode.request(more=more))
    await origin_mode.ask(origin_mode.request(more="Authorization: Basic dXNlcjpwdw==\r\n"))
    first, second = (head.decode() for head in origin_mode.ide.heads)
    assert "SECRET" not in first
    assert header(first, "cookie") == "x=1"
    assert header(first, "authorization") is None
    assert header(second, "authorization") == "Basic dXNlcjpwdw=="
    assert header(second, "cookie") is None


TOKEN = f"chub_{'0123456789' * 4}"


async def test_a_url_with_a_token_is_refused(origin_mode: World, path_mode: World) -> None:
    for made in (origin_mode, path_mode):
        for target in (f"/?t={TOKEN}", f"/proxy/3000/{TOKEN}", f"/.codehub/enter?to=/{TOKEN}"):
            head, body = await made.ask(made.entrance(target))
            assert status(head) == 400 and b"holds a CodeHub token" in body, target
            assert TOKEN not in head and TOKEN.encode() not in body
    for target in (f"/?t={TOKEN}", f"/.codehub/begin?to=/{TOKEN}"):
        head, _ = await origin_mode.ask(origin_mode.request(target))
        assert status(head) == 400
    assert not origin_mode.ide.heads and not path_mode.ide.heads


async def test_draining_completes_active_requests_and_closes_idle_connections() -> None:
    async def slow(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_head(reader)
        await until(lambda: made.gateway.draining, "the drain")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate")

    async with world(timeouts=replace(LONG_TIMEOUTS, drain=NEVER)) as made:
        idle = await made.connect()
        idle.send(made.request())
        await idle.response()
        made.ide.script = slow
        busy = await made.connect()
        busy.send(made.request("/", "POST", more="Content-Length: 0\r\n"))
        await until(lambda: len(made.ide.heads) == 2, "the request")
    head, body = await busy.response()
    assert body == b"late"
    assert header(head, "connection") == "close"
    assert await idle.rest() == b""


async def test_connections_above_the_cap_get_a_503() -> None:
    async with world(max_connections=2) as made:
        clients = [await made.connect() for _ in range(2)]
        await until(lambda: len(made.gateway._connections) == 2, "both connections")
        head, _ = await made.ask("")
        assert status(head) == 503
        for client in clients:
            client.send(made.request())
            assert (await client.response())[1] == b"hello"
            client.close()


async def test_an_upstream_connection_is_reused_after_a_slow_read(origin_mode: World) -> None:
    """The last bytes still wait for the client when the upstream connection becomes free."""
    size = 100 << 10

    async def script(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await upstream.read_head(reader):
            body = b"x" * (size if b"GET /large" in head else 5)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            await writer.drain()

    origin_mode.ide.script = script
    client = await origin_mode.connect()
    await until(lambda: origin_mode.gateway._connections, "the connection")
    (connection,) = origin_mode.connections
    for transport, option in ((connection.transport, "SO_SNDBUF"), (client.writer, "SO_RCVBUF")):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, getattr(socket, option), 4096)
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    client.send(origin_mode.request("/large"))
    await until(lambda: connection.write_paused, "the gateway to wait for the client")
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    assert len((await client.response())[1]) == size
    client.send(origin_mode.request("/small"))
    assert (await client.response())[1] == b"xxxxx"
    assert origin_mode.ide.connections == 1
