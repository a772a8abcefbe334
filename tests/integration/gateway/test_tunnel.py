"""WebSockets, and everything that stays open until its leave is withdrawn."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, unix_serve
from websockets.exceptions import ConnectionClosed, InvalidStatus

from codehub.database.gateway_queries import Route, Visitor
from codehub.domain.states import Phase, Role
from tests.integration.gateway.harness import (
    MINE,
    SESSION,
    Client,
    World,
    hash_of,
    header,
    status,
    world,
)
from tests.waiting import PATIENCE, until

UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Extensions: permessage-deflate\r\n"
)


class Echo:
    """A real WebSocket server where the workspace's IDE would listen."""

    def __init__(self) -> None:
        self.extensions: list[str | None] = []
        self.open = 0

    async def __call__(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        self.extensions.append(connection.request.headers.get("Sec-WebSocket-Extensions"))
        self.open += 1
        try:
            async for message in connection:
                await connection.send(message)
        except ConnectionClosed:
            return
        finally:
            self.open -= 1


@asynccontextmanager
async def echoing(made: World) -> AsyncIterator[Echo]:
    await made.ide.stop()
    made.ide.path.unlink(missing_ok=True)
    server = Echo()
    async with unix_serve(server, str(made.ide.path), max_size=None):
        yield server


@pytest.fixture
async def echo(origin: World) -> AsyncIterator[Echo]:
    async with echoing(origin) as server:
        yield server


def dial(made: World, **options: object) -> connect:
    headers = {"Cookie": made.cookie()} | dict(options.pop("headers", {}))  # type: ignore[call-overload]
    return connect(
        f"ws://{made.host}/socket", host="127.0.0.1", port=made.gateway.port, proxy=None,
        additional_headers=headers, max_size=None, **options,
    )  # fmt: skip


async def test_messages_pass_both_ways_at_any_size(origin: World, echo: Echo) -> None:
    async with dial(origin, origin=f"http://{origin.host}") as socket:
        for size in (0, 1, 125, 126, 65535, 65536, 5_000_000):
            await socket.send(b"z" * size)
            assert await socket.recv() == b"z" * size


async def test_compression_is_left_out_only_where_activity_must_be_read(origin: World, echo: Echo) -> None:
    async with dial(origin):
        pass
    origin.set_phase(MINE, Phase.RUNNING, image="jupyter")
    async with dial(origin):
        pass
    assert echo.extensions[0] is None
    assert "permessage-deflate" in (echo.extensions[1] or "")


async def test_a_foreign_origin_opens_no_socket(origin: World, echo: Echo) -> None:
    for foreign in ("http://evil.example", f"http://{origin.platform}", "null"):
        with pytest.raises(InvalidStatus) as refused:
            async with dial(origin, origin=foreign):
                pass
        assert refused.value.response.status_code == 403
    with pytest.raises(InvalidStatus) as refused:
        async with dial(origin, headers={"Cookie": "x=1"}):
            pass
    assert refused.value.response.status_code == 401
    assert echo.extensions == []


async def test_closing_one_side_closes_the_other(origin: World, echo: Echo) -> None:
    async with dial(origin) as socket:
        await until(lambda: echo.open == 1, "the socket to be open")
        socket.transport.abort()
        await until(lambda: echo.open == 0, "the socket to end")


async def test_a_dying_upstream_closes_the_client(origin: World) -> None:
    async def dying(_upstream: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nlast words"
        )
        await writer.drain()

    origin.ide.script = dying
    client = await origin.connect()
    client.send(origin.request("/", more=UPGRADE))
    head = await client.head()
    assert (status(head), header(head, "upgrade"), header(head, "connection")) == (
        101,
        "websocket",
        "Upgrade",
    )
    assert await client.rest() == b"last words"


async def test_a_refused_upgrade_is_an_ordinary_answer_and_the_end(origin: World) -> None:
    client = await origin.connect()
    client.send(origin.request("/", more=UPGRADE) + "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
    head, body = await client.response()
    assert (status(head), body) == (200, b"hello")
    assert await client.rest() == b""
    assert len(origin.ide.heads) == 1


async def test_other_upgrades_are_not_passed_on(origin: World) -> None:
    more = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    assert status((await origin.ask(origin.request(more=more)))[0]) == 200
    seen = origin.ide.heads[0].decode()
    assert header(seen, "upgrade") is None and header(seen, "http2-settings") is None


async def test_logout_ends_open_sockets_at_once(origin: World, echo: Echo) -> None:
    async with dial(origin) as socket:
        del origin.facts.visitors[hash_of(SESSION)]
        origin.gateway.revocation.session_ended(hash_of(SESSION))
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), PATIENCE)
        await until(lambda: echo.open == 0, "the socket to end")


async def test_a_session_that_ends_while_the_way_is_looked_up_opens_nothing(
    origin: World, echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_route = origin.facts.route

    async def logout_meanwhile(workspace_id: str) -> Route | None:
        origin.facts.visitors.pop(hash_of(SESSION), None)
        origin.gateway.revocation.session_ended(hash_of(SESSION))
        return await find_route(workspace_id)

    monkeypatch.setattr(origin.gateway.route_cache._routes, "_read", logout_meanwhile)
    with pytest.raises(InvalidStatus):
        await dial(origin)
    assert echo.open == 0


async def test_a_deleted_user_loses_open_sockets(origin: World, echo: Echo) -> None:
    async with dial(origin) as socket:
        del origin.facts.visitors[hash_of(SESSION)]
        origin.gateway.revocation.user_changed("01alice0000000000000000000")
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), PATIENCE)


async def test_a_workspace_that_no_longer_runs_loses_open_sockets(origin: World, echo: Echo) -> None:
    async with dial(origin) as socket:
        origin.set_phase(MINE, Phase.RUNNING)  # a change that leaves it running does not disturb
        await socket.send("still here")
        assert await socket.recv() == "still here"
        origin.set_phase(MINE, Phase.STANDBY)
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), PATIENCE)


def end_session(origin: World) -> None:
    del origin.facts.visitors[hash_of(SESSION)]


def change_role(origin: World) -> None:
    visitors = origin.facts.visitors
    visitors[hash_of(SESSION)] = replace(visitors[hash_of(SESSION)], role=Role.ADMIN)


withdrawals = pytest.mark.parametrize("withdraw", [end_session, change_role])


@withdrawals
async def test_what_was_missed_while_the_push_channel_was_away_is_made_up_for(
    origin: World, echo: Echo, withdraw: Callable[[World], None]
) -> None:
    async with dial(origin) as socket:
        origin.gateway.revocation.channel_lost()
        origin.gateway.revocation.channel_regained()
        await socket.send("still here")
        assert await socket.recv() == "still here"
        origin.gateway.revocation.channel_lost()
        withdraw(origin)
        origin.gateway.revocation.channel_regained()
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), PATIENCE)


@withdrawals
async def test_a_check_that_fails_is_made_again(
    origin: World, echo: Echo, withdraw: Callable[[World], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codehub.gateway.revocation.RETRY_SECONDS", 0.05)
    ask, tries = origin.gateway.route_cache._visitors._read, 0

    async def away_once(id_hash: bytes) -> Visitor | None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise OSError("the database is away")
        return await ask(id_hash)

    async with dial(origin) as socket:
        origin.gateway.revocation.channel_lost()
        origin.gateway.route_cache._visitors._read = away_once
        withdraw(origin)
        origin.gateway.revocation.channel_regained()
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), PATIENCE)
        assert tries == 2


async def open_event_stream(origin: World) -> Client:
    async def stream(upstream: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n3\r\n:\r\n\r\n"
        )
        await reader.read()

    origin.api.script = stream
    client = await origin.connect()
    client.send(
        f"GET /api/v1/events HTTP/1.1\r\nHost: {origin.platform}\r\nCookie: session={SESSION}\r\n\r\n"
    )
    await client.head()
    return client


async def test_an_event_stream_ends_with_its_session(origin: World) -> None:
    client = await open_event_stream(origin)
    origin.gateway.revocation.session_ended(hash_of(SESSION))
    await client.rest()
    await until(lambda: origin.api.open == 0, "the stream to end")


async def test_an_event_stream_ends_with_its_role_and_nobody_elses(origin: World) -> None:
    client = await open_event_stream(origin)
    revocation, user_id = origin.gateway.revocation, origin.facts.visitors[hash_of(SESSION)].user_id
    events = lambda: revocation.user_changed("another"), revocation.channel_lost, revocation.channel_regained
    for happens in events:
        happens()
        await until(lambda: not revocation._checks, "the check")
        assert origin.api.open == 1
    change_role(origin)
    revocation.user_changed(user_id)
    await client.rest()
    await until(lambda: origin.api.open == 0, "the stream to end")


async def test_a_request_under_way_is_told_when_its_workspace_stops(origin: World) -> None:
    async def silent(upstream: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    origin.ide.script = silent
    client = await origin.connect()
    client.send(origin.request())
    await until(lambda: origin.ide.open == 1, "the request")
    origin.set_phase(MINE, Phase.STANDBY)
    assert status((await client.response())[0]) == 503


async def test_sockets_and_pages_are_activity_and_assets_are_not(origin: World, echo: Echo) -> None:
    async with dial(origin) as socket:
        await socket.send(b"\x09" + b"\0" * 12)
        assert await socket.recv()
        assert not origin.gateway.recorder.collect()
        await socket.send(b"\x01" + b"\0" * 12 + b"$acceptModelChanged")
        assert await socket.recv()
        assert MINE in origin.gateway.recorder.collect()


async def test_requests_of_an_ide_that_is_not_vscode_are_activity(origin: World) -> None:
    await origin.ask(origin.request("/asset.js"))
    assert not origin.gateway.recorder.collect()
    await origin.ask(origin.request("/proxy/3000/"))
    assert origin.gateway.recorder.collect()
    origin.set_phase(MINE, Phase.RUNNING, image="jupyter")
    await origin.ask(origin.request("/asset.js"))
    assert origin.gateway.recorder.collect()


async def test_draining_closes_tunnels() -> None:
    async with world() as made, echoing(made), dial(made) as socket:
        await made.gateway._drain()
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), PATIENCE)
