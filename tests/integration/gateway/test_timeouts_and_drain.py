"""Timeouts of connections and streams, the order of pipelined responses, and draining."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from codehub.gateway.config import Timeouts
from tests.integration.gateway.client_group import request
from tests.integration.gateway.gateway_process import GatewayProcess, gateway_process
from tests.integration.gateway.harness import (
    LONG_TIMEOUTS,
    MINE,
    NEVER,
    SESSION,
    Client,
    Script,
    Upstream,
    World,
    respond_with,
    session_hash,
    status,
    world,
)
from tests.waiting import PATIENCE, until

DRAINING = replace(LONG_TIMEOUTS, drain=NEVER)
UPGRADE = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"


async def test_upstream_connections_over_tcp_are_kept_alive(origin_mode: World) -> None:
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
    origin_mode.facts.routes[MINE] = replace(origin_mode.facts.routes[MINE], upstream=f"tcp:127.0.0.1:{port}")
    for _ in range(5):  # each from a new client
        assert (await origin_mode.ask(origin_mode.request()))[1] == b"tcp"
    assert connections == 1
    server.close()


async def test_pipelined_responses_keep_their_order_whatever_their_source(origin_mode: World) -> None:
    """The gateway sends some at once, some after a lookup, and relays others from an upstream."""
    exchanges = [
        (origin_mode.request("/first"), b"hello"),
        ("GET / HTTP/1.1\r\nHost: elsewhere\r\n\r\n", b"MISDIRECTED"),
        (origin_mode.entrance(session="unknown", more=""), b"UNAUTHORIZED"),
        (origin_mode.request("/second"), b"hello"),
        (f"GET /w/{MINE} HTTP/1.1\r\nHost: {origin_mode.platform}\r\n\r\n", b""),
        (f"GET /healthz HTTP/1.1\r\nHost: {origin_mode.platform}\r\n\r\n", b"hello"),
    ]
    client = await origin_mode.connect()
    client.send("".join(data for data, _ in exchanges))
    for data, expected in exchanges:
        assert expected in (await client.response())[1], data
    client.close()


async def test_an_idle_connection_is_closed_after_its_limit(origin_mode: World) -> None:
    client = await origin_mode.connect()
    client.send(origin_mode.request())
    await client.response()
    origin_mode.elapse()
    assert await client.rest() == b""
    await until(lambda: not origin_mode.gateway._connections, "the connection to be removed")


async def test_a_stream_may_pause_for_longer_than_any_timeout(origin_mode: World) -> None:
    """An idle connection ends meanwhile, which shows that the gateway has checked the timeouts."""
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

    origin_mode.ide.script = pausing
    client = await origin_mode.connect()
    client.send(origin_mode.request())
    await client.head()
    origin_mode.ide.script = tunnel
    websocket = await origin_mode.connect()
    websocket.send(origin_mode.request(more=UPGRADE))
    await websocket.head()
    idle = await origin_mode.connect()
    await until(lambda: len(origin_mode.gateway._connections) == 3, "the idle connection")
    origin_mode.elapse()
    await idle.rest()
    go_on.set()
    assert await client.reader.readuntil(b"0\r\n\r\n") == b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n"
    websocket.send(b"still here")
    assert await websocket.reader.readexactly(10) == b"still here"
    client.close()
    websocket.close()


async def test_an_upload_times_out_only_if_it_makes_no_progress(origin_mode: World) -> None:
    taken = 0

    async def taking(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        await upstream.read_head(reader)
        for _ in range(4):
            await reader.readexactly(1)
            taken += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\ntaken")
        await reader.read()

    origin_mode.ide.script = taking
    moving, stuck = await origin_mode.connect(), await origin_mode.connect()
    for client in (moving, stuck):
        client.send(origin_mode.request("/", "POST", more="Content-Length: 4\r\n"))
    stuck.send(b"x")
    for number in range(2, 5):
        moving.send(b"x")
        await until(lambda number=number: taken == number, "the upstream to take it")
        origin_mode.elapse(NEVER * 0.6)
    assert status((await stuck.response())[0]) == 408
    moving.send(b"x")
    assert (await moving.response())[1] == b"taken"
    moving.close()


@contextlib.asynccontextmanager
async def world_with_access(directory: Path, script: Script) -> AsyncIterator[World]:
    """Run a gateway with its usual timeouts, and an access part with this script."""
    access = Upstream(directory / "access.sock", script)
    await access.start()
    async with world(timeouts=Timeouts(), access_upstream=access.address) as made:
        yield made
    await access.stop()


def access_call(made: World, method: str, more: str = "") -> str:
    path = f"/api/v1/workspaces/{MINE}/files/content?path=a"
    return f"{method} {path} HTTP/1.1\r\nHost: {made.platform}\r\n{more}\r\n"


async def elapse(made: World, seconds: float) -> None:
    """Let time pass, and wait until the gateway has checked its timeouts."""
    expected = len(made.connections) + 1
    idle = await made.connect()
    await until(lambda: len(made.connections) == expected, "the idle connection")
    made.elapse(seconds)
    assert await idle.rest() == b""


async def test_a_call_of_the_access_part_may_take_as_long_as_its_longest_work(tmp_path: Path) -> None:
    """A wake of 55 s, and then a search, or the removal of a large directory, of ten minutes."""

    async def silent(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_head(reader)
        await reader.read()

    async with world_with_access(tmp_path, silent) as made:
        clients = [await made.connect() for _ in range(2)]
        for client, method in zip(clients, ("GET", "DELETE"), strict=True):
            client.send(access_call(made, method))
        await until(lambda: len(made.connections) == 2, "both calls")
        await elapse(made, 55 + 600)
        assert len(made.connections) == 2
        made.elapse(120)
        assert [status((await client.response())[0]) for client in clients] == [504, 504]


async def test_an_upload_of_a_vanished_client_ends_unless_the_upstream_holds_it(tmp_path: Path) -> None:
    """A command may take its input at any later time. A client that sends nothing frees its slot."""
    goes_on = asyncio.Event()

    async def taking(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_head(reader)
        await goes_on.wait()
        while await reader.read(1 << 20):
            pass

    async with world_with_access(tmp_path, taking) as made:
        client = await made.connect()
        client.send(access_call(made, "PUT", f"Content-Length: {1 << 30}\r\n") + "x" * (16 << 20))
        await until(
            lambda: any(each._held_for_upstream for each in made.connections), "the upload to be held"
        )
        await elapse(made, 7200)
        assert len(made.connections) == 1
        goes_on.set()
        await until(lambda: not made.connections[0]._held_for_upstream, "the upstream to take data")
        await asyncio.wait_for(client.writer.drain(), PATIENCE)
        await until(lambda: not made.connections[0]._buffer, "the upstream to take all")
        made.elapse(61)
        assert status((await client.response())[0]) == 408


async def test_an_event_stream_is_recognized_by_an_escaped_path() -> None:
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
                made.gateway.revocation.on_session_ended(session_hash(SESSION))
                await client.rest()
        await asyncio.wait_for(made.gateway._drain(), PATIENCE)
        await clients[1].rest()


async def test_a_lost_push_channel_empties_the_route_cache(origin_mode: World) -> None:
    await origin_mode.ask(origin_mode.request())
    route_cache = origin_mode.gateway.route_cache
    assert route_cache._session_users.known and route_cache._routes.known
    origin_mode.gateway.revocation.on_channel_lost()
    assert not route_cache._session_users.known and not route_cache._routes.known
    origin_mode.facts.session_users.clear()
    assert status((await origin_mode.ask(origin_mode.request()))[0]) == 401


async def test_a_drain_waits_for_an_upload_and_accepts_no_new_request() -> None:
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
        assert await client.rest() == b""  # the next request is not accepted
        await asyncio.wait_for(draining, PATIENCE)


async def test_a_drain_serves_connections_in_the_listen_queue() -> None:
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


async def _request_status(gateway: GatewayProcess) -> int:
    client = Client(*await asyncio.open_connection("127.0.0.1", gateway.port))
    client.send(request(gateway))
    try:
        return status((await client.response())[0])
    finally:
        client.close()


async def test_a_gateway_takes_over_a_port_with_at_most_one_reset_per_client(tmp_path: Path) -> None:
    ide = Upstream(tmp_path / "ide.sock", respond_with(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"))
    await ide.start()
    stop, statuses, resets = asyncio.Event(), [], []

    async def send_requests(gateway: GatewayProcess) -> None:
        while not stop.is_set():
            try:
                statuses.append(await _request_status(gateway))
            except ConnectionResetError:  # it connected after the last accept, before the queue closed
                resets.append(gateway)

    async with contextlib.AsyncExitStack() as old:
        # On a busy machine a request may arrive late, so the old gateway waits longer than usual.
        long_waits = {"linger": PATIENCE / 2, "drain": PATIENCE / 2}
        first = await old.enter_async_context(gateway_process(upstream=ide.address, **long_waits))
        async with gateway_process(upstream=ide.address, port=first.port) as second:
            clients = [asyncio.create_task(send_requests(second)) for _ in range(8)]
            await until(lambda: len(statuses) > 100, "responses")
            await old.aclose()  # drains, and ends
            before = len(statuses)
            await until(lambda: len(statuses) > before + 100, "responses of the second gateway")
            stop.set()
            await asyncio.gather(*clients)
    assert set(statuses) == {200} and len(resets) <= 8
    await ide.stop()
