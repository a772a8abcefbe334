"""The event stream, over a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
import uvicorn
from redis.asyncio import Redis
from uvicorn.protocols.http.flow_control import FlowControl

from codehub.api import event_source
from codehub.api.server import listen, make_server
from codehub.asgi import credential_revocation
from codehub.bus.events import hint_message, publish, resync_message
from codehub.clock import utc_now
from codehub.database import accounts, tokens
from codehub.database.accounts import AccountChanges
from codehub.database.engine import asyncpg_dsn
from codehub.domain.audit import CLI
from codehub.domain.states import Role
from codehub.settings import Settings
from tests.integration.api.conftest import BASE, Api
from tests.waiting import PATIENCE

PREFIX = "codehub:sse:"


class Stream:
    """Reader of one event stream. `next()` returns (event, data)."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.ids: list[str] = []

    async def next(self) -> tuple[str, Any]:
        found: dict[str, str] = {}
        async with asyncio.timeout(PATIENCE):
            async for line in self._lines:
                if not line and "event" not in found:
                    continue  # fields without an event, such as `retry`
                if not line:
                    self.ids.append(found["id"])
                    return found["event"], json.loads(found["data"])
                name, _, value = line.partition(": ")
                found[name] = value
        return "end", None


class ServedApi:
    """API on a socket, with its clients and its Redis."""

    def __init__(self, api: Api, socket: Path, redis: Redis, server: uvicorn.Server) -> None:
        self.api = api
        self.socket = socket
        self.redis = redis
        self.server = server

    @asynccontextmanager
    async def stream(self, person: httpx.AsyncClient) -> AsyncIterator[Stream]:
        transport = httpx.AsyncHTTPTransport(uds=str(self.socket))
        async with (
            httpx.AsyncClient(
                transport=transport,
                base_url=BASE,
                cookies=person.cookies,
                headers={name: value for name, value in person.headers.items() if name == "authorization"},
                timeout=PATIENCE,
            ) as client,
            client.stream("GET", "/api/v1/events") as response,
        ):
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            yield Stream(response.aiter_lines())

    async def publish_hint(self, username: str, workspace_id: str, kind: str = "workspace_updated") -> None:
        """Publish a hint, as the coordinator does."""
        event = {"type": kind, "id": workspace_id}
        await publish(self.redis, [hint_message(PREFIX, self.api.ids[username], event)])


@pytest.fixture
async def served(api: Api, settings: Settings, tmp_path: Path) -> AsyncIterator[ServedApi]:
    path = tmp_path / "api.sock"
    server = make_server(settings)
    listening = listen(f"unix:{path}")
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    redis = Redis.from_url(settings.redis_url)
    yield ServedApi(api, path, redis, server)
    server.should_exit = True
    async with asyncio.timeout(PATIENCE):
        await serving
    listening.close()
    await redis.aclose()


def listed(workspace: dict[str, Any]) -> dict[str, Any]:
    """Return a workspace without a home as in lists and events."""
    return {name: value for name, value in workspace.items() if name not in ("memo", "archive")}


async def test_a_stream_sends_a_snapshot_updates_and_deletions(served: ServedApi) -> None:
    alice = await served.api.quick_client("alice", Role.USER)
    first = await served.api.workspace(alice, name="first")
    async with served.stream(alice) as stream:
        assert await stream.next() == ("snapshot", {"items": [listed(first)], "more": False})
        second = await served.api.workspace(alice, name="second")
        await served.publish_hint("alice", second["id"])
        assert await stream.next() == ("workspace_updated", listed(second))
        await served.api.set(first["id"], operation="NONE", phase="STANDBY")
        await served.publish_hint("alice", first["id"])
        name, data = await stream.next()
        assert (name, data["phase"]) == ("workspace_updated", "STANDBY")
        await alice.delete(f"/api/v1/workspaces/{first['id']}")
        await served.publish_hint("alice", first["id"], "workspace_deleted")
        assert await stream.next() == ("workspace_deleted", {"id": first["id"]})
        assert len(set(stream.ids)) == len(stream.ids) == 4


async def test_a_stream_needs_a_session(served: ServedApi) -> None:
    transport = httpx.AsyncHTTPTransport(uds=str(served.socket))
    async with httpx.AsyncClient(transport=transport, base_url=BASE, timeout=PATIENCE) as client:
        assert (await client.get("/api/v1/events")).status_code == 401


async def test_a_stream_shows_only_the_users_own_workspaces(served: ServedApi) -> None:
    alice = await served.api.quick_client("alice", Role.USER)
    root = await served.api.quick_client("root", Role.ADMIN)
    secret = await served.api.workspace(alice)
    async with served.stream(root) as stream:
        assert await stream.next() == ("snapshot", {"items": [], "more": False})
        await served.publish_hint("alice", secret["id"])
        await served.publish_hint("root", secret["id"])  # even a misdirected hint reveals nothing
        assert await stream.next() == ("workspace_deleted", {"id": secret["id"]})


async def test_two_streams_of_one_user_get_the_same_events(served: ServedApi) -> None:
    alice = await served.api.quick_client("alice", Role.USER)
    made = await served.api.workspace(alice)
    async with served.stream(alice) as one:
        await one.next()
        async with served.stream(alice) as two:
            await two.next()
            await served.publish_hint("alice", made["id"])
            assert (await one.next())[0] == (await two.next())[0] == "workspace_updated"
        await served.publish_hint("alice", made["id"])
        assert (await one.next())[0] == "workspace_updated"


async def test_signing_out_ends_the_stream_at_once(served: ServedApi) -> None:
    alice = await served.api.quick_client("alice", Role.USER)
    async with served.stream(alice) as stream:
        await stream.next()
        assert (await alice.post("/api/v1/logout")).status_code == 204
        assert (await stream.next())[0] == "end"


async def test_deleting_the_user_ends_the_stream_at_once(served: ServedApi) -> None:
    alice = await served.api.quick_client("alice", Role.USER)
    root = await served.api.quick_client("root", Role.ADMIN)
    async with served.stream(alice) as stream:
        await stream.next()
        assert (await root.delete(f"/api/v1/users/{served.api.ids['alice']}")).status_code == 204
        assert (await stream.next())[0] == "end"


async def _revoke(api: Api, token_id: str) -> None:
    async with api.engine.begin() as conn:
        await tokens.revoke_token(conn, api.ids["chief"], token_id)


async def _delete_owner(api: Api, _token_id: str) -> None:
    await accounts.delete_account(api.engine, api.ids["chief"], actor=CLI, now=utc_now())


async def _demote_owner(api: Api, _token_id: str) -> None:
    changes = AccountChanges(role=Role.USER)
    await accounts.change_account(api.engine, api.ids["chief"], changes, actor=CLI, now=utc_now())


@pytest.mark.parametrize("end", [_revoke, _delete_owner, _demote_owner])
async def test_the_stream_of_a_token_ends_with_its_rights(
    served: ServedApi, end: Callable[[Api, str], Awaitable[None]]
) -> None:
    """The heartbeat, which would find out as well, comes only after 30 s."""
    for name in ("root", "chief"):
        await served.api.quick_client(name, Role.ADMIN)
    token_id, secret = await served.api.token("chief", "read", "admin")
    async with served.stream(await served.api.client(Authorization=f"Bearer {secret}")) as stream:
        assert (await stream.next())[0] == "snapshot"
        await end(served.api, token_id)
        assert await stream.next() == ("end", None)


async def test_the_stream_of_a_token_ends_when_it_expires(
    served: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a heartbeat and without a notification: nobody announces the time."""
    await served.api.quick_client("alice", Role.USER)
    client = await served.api.token_client("alice", "read", lifetime=PATIENCE)
    almost = utc_now() + timedelta(seconds=PATIENCE - 0.5)
    monkeypatch.setattr(credential_revocation, "utc_now", lambda: almost)
    async with served.stream(client) as stream:
        assert [(await stream.next())[0], (await stream.next())[0]] == ["snapshot", "end"]


async def test_the_stream_of_a_bound_token_is_about_its_workspaces_only(served: ServedApi) -> None:
    alice = await served.api.quick_client("alice", Role.USER)
    mine, other = [await served.api.workspace(alice, name=name) for name in ("mine", "other")]
    bound = await served.api.token_client("alice", "read", workspaces=[mine["id"]])
    async with served.stream(bound) as stream:
        assert await stream.next() == ("snapshot", {"items": [listed(mine)], "more": False})
        await alice.delete(f"/api/v1/workspaces/{other['id']}")
        await served.publish_hint("alice", other["id"], "workspace_deleted")
        renamed = (await alice.patch(f"/api/v1/workspaces/{mine['id']}", json={"name": "x"})).json()
        await served.publish_hint("alice", mine["id"])
        assert await stream.next() == ("workspace_updated", listed(renamed))


async def test_a_session_that_ended_while_not_listening_ends_its_stream(served: ServedApi) -> None:
    alice = await served.api.quick_client("alice", Role.USER)
    dsn = asyncpg_dsn(served.api.settings.database_url)
    async with served.stream(alice) as stream:
        await stream.next()
        conn = await asyncpg.connect(dsn)
        try:
            await conn.execute("SET session_replication_role = replica")  # no trigger, so no notification
            await conn.execute("DELETE FROM sessions")
            await conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND query LIKE 'LISTEN%' OR query = 'SELECT 1'"
            )
        finally:
            await conn.close()
        assert (await stream.next())[0] == "end"


async def test_a_reconnect_to_redis_sends_a_fresh_snapshot(served: ServedApi) -> None:
    alice = await served.api.quick_client("alice", Role.USER)
    made = await served.api.workspace(alice)
    async with served.stream(alice) as stream:
        await stream.next()
        await served.redis.client_kill_filter(_type="pubsub")
        assert (await stream.next())[0] == "snapshot"
        await served.publish_hint("alice", made["id"])
        while (await stream.next())[0] == "snapshot":
            continue


async def test_a_resync_sends_everyone_a_fresh_snapshot(served: ServedApi) -> None:
    alice = await served.api.quick_client("alice", Role.USER)
    async with served.stream(alice) as stream:
        await stream.next()
        await publish(served.redis, [resync_message(PREFIX)])
        assert (await stream.next())[0] == "snapshot"


async def test_an_idle_stream_sends_heartbeats(served: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_source, "HEARTBEAT", 0.2)
    alice = await served.api.quick_client("alice", Role.USER)
    async with served.stream(alice) as stream:
        assert await _after_heartbeats(stream) == ("snapshot", {"items": [], "more": False})
        assert await stream.next() == ("heartbeat", {})
        assert await stream.next() == ("heartbeat", {})


async def test_a_change_whose_hint_was_lost_comes_with_the_heartbeat(
    served: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_source, "HEARTBEAT", 0.2)
    alice = await served.api.quick_client("alice", Role.USER)
    async with served.stream(alice) as stream:
        assert (await _after_heartbeats(stream))[0] == "snapshot"
        made = await served.api.workspace(alice)
        assert await _after_heartbeats(stream) == ("workspace_updated", listed(made))
        await alice.delete(f"/api/v1/workspaces/{made['id']}")
        assert await _after_heartbeats(stream) == ("workspace_deleted", {"id": made["id"]})


async def _after_heartbeats(stream: Stream) -> tuple[str, Any]:
    while (event := await stream.next())[0] == "heartbeat":
        continue
    return event


async def test_a_client_that_does_not_read_does_not_delay_the_end(
    served: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_paused = asyncio.Event()
    pause_writing = FlowControl.pause_writing

    def record(flow: FlowControl) -> None:
        write_paused.set()
        pause_writing(flow)

    monkeypatch.setattr(FlowControl, "pause_writing", record)
    alice = await served.api.quick_client("alice", Role.USER)
    for number in range(3):
        await served.api.workspace(alice, name=f"w{number}", description="x" * 1000)
    reader, writer = await asyncio.open_unix_connection(str(served.socket), limit=1024)
    cookie = alice.cookies["session"]
    head = f"GET /api/v1/events HTTP/1.1\r\nHost: x\r\nConnection: close\r\nCookie: session={cookie}\r\n\r\n"
    writer.write(head.encode())
    await reader.readuntil(b"event: snapshot")
    async with asyncio.timeout(PATIENCE):
        while not write_paused.is_set():
            await publish(served.redis, [resync_message(PREFIX)])
    await alice.post("/api/v1/logout")
    async with asyncio.timeout(PATIENCE):
        while await reader.read(65536):
            continue
    writer.close()


async def test_stopping_the_server_ends_the_streams(served: ServedApi) -> None:
    alice = await served.api.quick_client("alice", Role.USER)
    async with served.stream(alice) as stream:
        assert (await stream.next())[0] == "snapshot"
        served.server.should_exit = True
        assert (await stream.next())[0] == "end"
