"""Corners of the relay that are rarely looked into: limits that streams do not have, drains, reloads."""

import asyncio
import contextlib
import socket
from dataclasses import replace
from pathlib import Path

from tests.integration.gateway.crowd import request
from tests.integration.gateway.harness import (
    MINE,
    NEVER,
    PATIENT,
    SESSION,
    Client,
    Upstream,
    World,
    answering,
    hash_of,
    status,
    world,
)
from tests.integration.gateway.standalone import Standalone, standalone
from tests.waiting import PATIENCE, until

DRAINING = replace(PATIENT, drain=NEVER)
UPGRADE = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"


async def test_upstreams_over_tcp_are_kept_alive_as_well(origin: World) -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ntcp")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    origin.facts.routes[MINE] = replace(origin.facts.routes[MINE], upstream=f"tcp:127.0.0.1:{port}")
    for _ in range(5):  # also by clients that come anew
        assert (await origin.ask(origin.request()))[1] == b"tcp"
    assert connections == 1
    server.close()


async def test_the_gateways_own_answers_keep_their_place_in_the_pipe(origin: World) -> None:
    """Those that it knows at once, those that it has to look up, and those of an upstream."""
    asked = [
        (origin.request("/first"), b"hello"),
        ("GET / HTTP/1.1\r\nHost: elsewhere\r\n\r\n", b"MISDIRECTED"),
        (origin.entrance(session="unknown", more=""), b"UNAUTHORIZED"),
        (origin.request("/second"), b"hello"),
        (f"GET /w/{MINE} HTTP/1.1\r\nHost: {origin.platform}\r\n\r\n", b""),
        (f"GET /healthz HTTP/1.1\r\nHost: {origin.platform}\r\n\r\n", b"hello"),
    ]
    client = await origin.connect()
    client.send("".join(data for data, _ in asked))
    for data, expected in asked:
        assert expected in (await client.response())[1], data
    client.close()


async def test_an_idle_connection_is_closed_after_its_limit(origin: World) -> None:
    client = await origin.connect()
    client.send(origin.request())
    await client.response()
    origin.elapse()
    assert await client.rest() == b""
    await until(lambda: not origin.gateway._connections, "the connection to be forgotten")


async def test_a_stream_may_pause_for_longer_than_any_limit(origin: World) -> None:
    """An idle connection beside it ends: so the gateway has looked for what took too long."""
    go_on = asyncio.Event()

    async def pausing(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        await go_on.wait()
        writer.write(b"1\r\nb\r\n0\r\n\r\n")
        await reader.read()

    async def tunnel(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_head(reader)
        writer.write(SWITCH)
        while data := await reader.read(100):
            writer.write(data)

    origin.ide.script = pausing
    client = await origin.connect()
    client.send(origin.request())
    await client.head()
    origin.ide.script = tunnel
    socket = await origin.connect()
    socket.send(origin.request(more=UPGRADE))
    await socket.head()
    idle = await origin.connect()
    await until(lambda: len(origin.gateway._connections) == 3, "the idle connection")
    origin.elapse()
    await idle.rest()
    go_on.set()
    assert await client.reader.readuntil(b"0\r\n\r\n") == b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n"
    socket.send(b"still here")
    assert await socket.reader.readexactly(10) == b"still here"
    client.close()
    socket.close()


async def test_an_upload_may_last_as_long_as_it_moves(origin: World) -> None:
    taken = 0

    async def taking(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        await upstream.read_head(reader)
        for _ in range(4):
            await reader.readexactly(1)
            taken += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\ntaken")
        await reader.read()

    origin.ide.script = taking
    moving, stuck = await origin.connect(), await origin.connect()
    for client in (moving, stuck):
        client.send(origin.request("/", "POST", more="Content-Length: 4\r\n"))
    stuck.send(b"x")
    for number in range(2, 5):
        moving.send(b"x")
        await until(lambda number=number: taken == number, "the upstream to take it")
        origin.elapse(NEVER * 0.6)
    assert status((await stuck.response())[0]) == 408
    moving.send(b"x")
    assert (await moving.response())[1] == b"taken"
    moving.close()


async def test_an_event_stream_is_known_however_it_is_spelled() -> None:
    async def stream(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n:\r\n\r\n")
        await reader.read()

    async with world(timeouts=DRAINING) as made:
        made.api.script = stream
        clients = [await made.connect() for _ in range(2)]
        for client in clients:
            client.send(
                f"GET /api/v1/%65vents HTTP/1.1\r\nHost: {made.platform}\r\nCookie: session={SESSION}\r\n\r\n"
            )
            await client.head()
            if client is clients[0]:
                made.gateway.revocation.session_ended(hash_of(SESSION))
                await client.rest()
        await asyncio.wait_for(made.gateway._drain(), PATIENCE)
        await clients[1].rest()


async def test_a_lost_push_channel_empties_the_memory(origin: World) -> None:
    await origin.ask(origin.request())
    directory = origin.gateway.route_cache
    assert directory._visitors.known and directory._routes.known
    origin.gateway.revocation.channel_lost()
    assert not directory._visitors.known and not directory._routes.known
    origin.facts.visitors.clear()
    assert status((await origin.ask(origin.request()))[0]) == 401


async def test_a_drain_lets_an_upload_finish_and_takes_nobody_new() -> None:
    async def taking(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_head(reader)
        await reader.readexactly(10)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\ntaken")
        await writer.drain()

    async with world(timeouts=DRAINING) as made:
        made.ide.script = taking
        client = await made.connect()
        client.send(made.request("/", "POST", more="Content-Length: 10\r\n") + "half ")
        await until(lambda: made.ide.open == 1, "the upload to begin")
        draining = asyncio.create_task(made.gateway._drain())
        await until(lambda: made.gateway.draining, "the drain")
        client.send("body." + made.request("/next"))
        head, body = await client.response()
        assert body == b"taken" and "connection: close" in head.lower()
        assert await client.rest() == b""  # the next request is not taken up
        await asyncio.wait_for(draining, PATIENCE)


async def test_a_drain_serves_those_who_still_stand_in_the_queue() -> None:
    async with world(timeouts=DRAINING) as made:
        queue = [socket.create_connection(("127.0.0.1", made.gateway.port)) for _ in range(20)]
        for each in queue[:10]:
            each.sendall(made.request().encode())
        late = asyncio.create_task(send_while_draining(made, queue[10:]))
    await late
    for each in queue:
        each.settimeout(PATIENCE)
        assert each.recv(1000).endswith(b"hello")
        assert each.recv(1000) == b""
        each.close()


async def send_while_draining(made: World, clients: list[socket.socket]) -> None:
    await until(lambda: made.gateway.draining, "the drain")
    for client in clients:
        client.sendall(made.request().encode())


async def _visit(gateway: Standalone) -> int:
    client = Client(*await asyncio.open_connection("127.0.0.1", gateway.port))
    client.send(request(gateway))
    try:
        return status((await client.response())[0])
    finally:
        client.close()


async def test_a_gateway_takes_over_from_another_and_hardly_anybody_notices(tmp_path: Path) -> None:
    ide = Upstream(tmp_path / "ide.sock", answering(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"))
    await ide.start()
    over, seen, reset = asyncio.Event(), [], []

    async def visiting(gateway: Standalone) -> None:
        while not over.is_set():
            try:
                seen.append(await _visit(gateway))
            except ConnectionResetError:  # it came between the last look at the queue and its end
                reset.append(gateway)

    async with contextlib.AsyncExitStack() as old:
        # A request may come late on a busy machine: the old gateway waits for it longer than it would in use.
        patient = {"linger": PATIENCE / 2, "drain": PATIENCE / 2}
        first = await old.enter_async_context(standalone(upstream=ide.address, **patient))
        async with standalone(upstream=ide.address, port=first.port) as second:
            crowd = [asyncio.create_task(visiting(second)) for _ in range(8)]
            await until(lambda: len(seen) > 100, "visits")
            await old.aclose()  # drains, and ends
            many = len(seen)
            await until(lambda: len(seen) > many + 100, "visits of the second gateway")
            over.set()
            await asyncio.gather(*crowd)
    assert set(seen) == {200} and len(reset) <= 8
    await ide.stop()
