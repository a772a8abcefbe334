"""WebSockets, and every stream that ends when its permission is revoked."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, unix_serve
from websockets.exceptions import ConnectionClosed, InvalidStatus

from codehub.database.gateway_queries import Route, SessionUser
from codehub.domain.states import Phase, Role
from tests.integration.gateway.harness import (
    ALICE,
    MINE,
    SESSION,
    Client,
    World,
    header,
    session_hash,
    status,
    world,
)
from tests.waiting import PATIENCE, until

UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Extensions: permessage-deflate\r\n"
)


class Echo:
    """Real WebSocket server in place of the workspace's IDE."""

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
async def echo(origin_mode: World) -> AsyncIterator[Echo]:
    async with echoing(origin_mode) as server:
        yield server


def open_websocket(made: World, **options: object) -> connect:
    headers = {"Cookie": made.cookie()} | dict(options.pop("headers", {}))  # type: ignore[call-overload]
    return connect(
        f"ws://{made.host}/socket", host="127.0.0.1", port=made.gateway.port, proxy=None,
        additional_headers=headers, max_size=None, **options,
    )  # fmt: skip


async def test_messages_pass_both_ways_at_any_size(origin_mode: World, echo: Echo) -> None:
    async with open_websocket(origin_mode, origin=f"http://{origin_mode.host}") as socket:
        for size in (0, 1, 125, 126, 65535, 65536, 5_000_000):
            await socket.send(b"z" * size)
            assert await socket.recv() == b"z" * size


async def test_compression_is_disabled_only_if_the_gateway_reads_activity(
    origin_mode: World, echo: Echo
) -> None:
    async with open_websocket(origin_mode):
        pass
    origin_mode.set_phase(MINE, Phase.RUNNING, image="jupyter")
    async with open_websocket(origin_mode):
        pass
    assert echo.extensions[0] is None
    assert "permessage-deflate" in (echo.extensions[1] or "")


async def test_a_foreign_origin_opens_no_socket(origin_mode: World, echo: Echo) -> None:
    for foreign in ("http://evil.example", f"http://{origin_mode.platform}", "null"):
        with pytest.raises(InvalidStatus) as refused:
            async with open_websocket(origin_mode, origin=foreign):
                pass
        assert refused.value.response.status_code == 403
    with pytest.raises(InvalidStatus) as refused:
        async with open_websocket(origin_mode, headers={"Cookie": "x=1"}):
            pass
    assert refused.value.response.status_code == 401
    assert echo.extensions == []


async def test_an_aborted_websocket_closes_the_upstream(origin_mode: World, echo: Echo) -> None:
    async with open_websocket(origin_mode) as socket:
        await until(lambda: echo.open == 1, "the socket to be open")
        socket.transport.abort()
        await until(lambda: echo.open == 0, "the socket to end")


async def test_a_dying_upstream_closes_the_client(origin_mode: World) -> None:
    async def dying(_upstream: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nlast words"
        )
        await writer.drain()

    origin_mode.ide.script = dying
    client = await origin_mode.connect()
    client.send(origin_mode.request("/", more=UPGRADE))
    head = await client.head()
    assert (status(head), header(head, "upgrade"), header(head, "connection")) == (
        101,
        "websocket",
        "Upgrade",
    )
    assert await client.rest() == b"last words"


async def test_a_refused_upgrade_gets_the_response_and_closes(origin_mode: World) -> None:
    client = await origin_mode.connect()
    client.send(origin_mode.request("/", more=UPGRADE) + "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
    head, body = await client.response()
    assert (status(head), body) == (200, b"hello")
    assert await client.rest() == b""
    assert len(origin_mode.ide.heads) == 1


async def test_other_upgrades_are_not_relayed(origin_mode: World) -> None:
    more = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    assert status((await origin_mode.ask(origin_mode.request(more=more)))[0]) == 200
    seen = origin_mode.ide.heads[0].decode()
    assert header(seen, "upgrade") is None and header(seen, "http2-settings") is None


async def test_logout_ends_open_sockets_at_once(origin_mode: World, echo: Echo) -> None:
    async with open_websocket(origin_mode) as socket:
        del origin_mode.facts.session_users[session_hash(SESSION)]
        origin_mode.gateway.revocation.on_session_ended(session_hash(SESSION))
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), PATIENCE)
        await until(lambda: echo.open == 0, "the socket to end")


async def test_a_session_that_ends_during_the_route_lookup_opens_nothing(
    origin_mode: World, echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_route = origin_mode.facts.route

    async def logout_meanwhile(workspace_id: str) -> Route | None:
        origin_mode.facts.session_users.pop(session_hash(SESSION), None)
        origin_mode.gateway.revocation.on_session_ended(session_hash(SESSION))
        return await find_route(workspace_id)

    monkeypatch.setattr(origin_mode.gateway.route_cache._routes, "_read", logout_meanwhile)
    with pytest.raises(InvalidStatus):
        await open_websocket(origin_mode)
    assert echo.open == 0


async def test_a_deleted_user_loses_open_sockets(origin_mode: World, echo: Echo) -> None:
    async with open_websocket(origin_mode) as socket:
        del origin_mode.facts.session_users[session_hash(SESSION)]
        origin_mode.gateway.revocation.on_user_changed("01alice0000000000000000000")
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), PATIENCE)


async def test_a_workspace_that_no_longer_runs_loses_open_sockets(origin_mode: World, echo: Echo) -> None:
    async with open_websocket(origin_mode) as socket:
        origin_mode.set_phase(MINE, Phase.RUNNING)  # a change during which it keeps running closes nothing
        await socket.send("still here")
        assert await socket.recv() == "still here"
        origin_mode.set_phase(MINE, Phase.STANDBY)
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), PATIENCE)


def end_session(origin_mode: World) -> None:
    del origin_mode.facts.session_users[session_hash(SESSION)]


def change_role(origin_mode: World) -> None:
    session_users = origin_mode.facts.session_users
    session_users[session_hash(SESSION)] = replace(session_users[session_hash(SESSION)], role=Role.ADMIN)


revocations = pytest.mark.parametrize("revoke", [end_session, change_role])


@revocations
async def test_a_revocation_during_an_outage_of_the_push_channel_takes_effect_after_it(
    origin_mode: World, echo: Echo, revoke: Callable[[World], None]
) -> None:
    async with open_websocket(origin_mode) as socket:
        origin_mode.gateway.revocation.on_channel_lost()
        origin_mode.gateway.revocation.on_channel_regained()
        await socket.send("still here")
        assert await socket.recv() == "still here"
        origin_mode.gateway.revocation.on_channel_lost()
        revoke(origin_mode)
        origin_mode.gateway.revocation.on_channel_regained()
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), PATIENCE)


@revocations
async def test_a_failed_check_is_retried(
    origin_mode: World, echo: Echo, revoke: Callable[[World], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codehub.gateway.revocation.RETRY_SECONDS", 0.05)
    read, attempts = origin_mode.gateway.route_cache._session_users._read, 0

    async def fail_once(id_hash: bytes) -> SessionUser | None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise OSError("the database is away")
        return await read(id_hash)

    async with open_websocket(origin_mode) as socket:
        origin_mode.gateway.revocation.on_channel_lost()
        origin_mode.gateway.route_cache._session_users._read = fail_once
        revoke(origin_mode)
        origin_mode.gateway.revocation.on_channel_regained()
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), PATIENCE)
        assert attempts == 2


async def open_event_stream(origin_mode: World, more: str = "") -> Client:
    async def stream(upstream: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n3\r\n:\r\n\r\n"
        )
        await reader.read()

    origin_mode.api.script = stream
    client = await origin_mode.connect()
    client.send(
        f"GET /api/v1/events HTTP/1.1\r\nHost: {origin_mode.platform}\r\n"
        f"Cookie: session={SESSION}\r\n{more}\r\n"
    )
    await client.head()
    return client


async def test_an_event_stream_ends_with_its_session(origin_mode: World) -> None:
    client = await open_event_stream(origin_mode)
    origin_mode.gateway.revocation.on_session_ended(session_hash(SESSION))
    await client.rest()
    await until(lambda: origin_mode.api.open == 0, "the stream to end")


async def test_an_event_stream_ends_when_its_token_expires(origin_mode: World) -> None:
    """The probe of the push channel, once a second, finds it: time announces nothing."""
    token = "chub_" + "a" * 40
    token_hash, user = session_hash(token), SessionUser(ALICE, "alice", time.time() + 3600)
    origin_mode.facts.token_users[token_hash] = user
    client = await open_event_stream(origin_mode, f"Authorization: Bearer {token}\r\n")
    users, probe = origin_mode.gateway.route_cache._token_users, origin_mode.gateway.revocation
    probe.on_channel_answered()
    assert origin_mode.api.open == 1
    users.known[token_hash] = replace(user, expires_at=time.time())
    probe.on_channel_answered()
    await client.rest()
    await until(lambda: origin_mode.api.open == 0, "the stream to end")


async def test_an_event_stream_ends_when_the_role_of_its_user_changes(origin_mode: World) -> None:
    client = await open_event_stream(origin_mode)
    revocation, user_id = (
        origin_mode.gateway.revocation,
        origin_mode.facts.session_users[session_hash(SESSION)].user_id,
    )
    events = (
        lambda: revocation.on_user_changed("another"),
        revocation.on_channel_lost,
        revocation.on_channel_regained,
    )
    for event in events:
        event()
        await until(lambda: not revocation._checks, "the check")
        assert origin_mode.api.open == 1
    change_role(origin_mode)
    revocation.on_user_changed(user_id)
    await client.rest()
    await until(lambda: origin_mode.api.open == 0, "the stream to end")


async def test_an_active_request_gets_a_503_when_its_workspace_stops(origin_mode: World) -> None:
    async def silent(upstream: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    origin_mode.ide.script = silent
    client = await origin_mode.connect()
    client.send(origin_mode.request())
    await until(lambda: origin_mode.ide.open == 1, "the request")
    origin_mode.set_phase(MINE, Phase.STANDBY)
    assert status((await client.response())[0]) == 503


async def test_only_websocket_messages_about_edits_are_activity(origin_mode: World, echo: Echo) -> None:
    async with open_websocket(origin_mode) as socket:
        await socket.send(b"\x09" + b"\0" * 12)
        assert await socket.recv()
        assert not origin_mode.gateway.recorder.collect()
        await socket.send(b"\x01" + b"\0" * 12 + b"$acceptModelChanged")
        assert await socket.recv()
        assert MINE in origin_mode.gateway.recorder.collect()


async def test_every_request_is_activity_only_for_an_ide_other_than_vscode(origin_mode: World) -> None:
    await origin_mode.ask(origin_mode.request("/asset.js"))
    assert not origin_mode.gateway.recorder.collect()
    await origin_mode.ask(origin_mode.request("/proxy/3000/"))
    assert origin_mode.gateway.recorder.collect()
    origin_mode.set_phase(MINE, Phase.RUNNING, image="jupyter")
    await origin_mode.ask(origin_mode.request("/asset.js"))
    assert origin_mode.gateway.recorder.collect()


async def test_draining_closes_tunnels() -> None:
    async with world() as made, echoing(made), open_websocket(made) as socket:
        await made.gateway._drain()
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), PATIENCE)
