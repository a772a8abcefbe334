"""Event streams use bounded memory, for any number of workspaces and slow clients."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from sqlalchemy import insert, update

from codehub.api import event_source, events, open_streams
from codehub.api.event_source import EventSource
from codehub.api.server import ApiProtocol
from codehub.asgi import uvicorn_protocol
from codehub.bus.events import Feed, publish, resync_message
from codehub.clock import utc_now
from codehub.database import credentials, sessions
from codehub.database.row_mapping import conditions_json
from codehub.database.tables import workspaces
from codehub.domain.conditions import initial_conditions
from codehub.domain.states import Role
from codehub.host.parent_death import die_with_parent
from tests.integration.api.conftest import BASE, Api
from tests.integration.api.test_events import PREFIX, ServedApi, served
from tests.waiting import PATIENCE, until, wait_for

__all__ = ["served"]

MEMO = "m" * 20_000
DESCRIPTION = "\N{GRINNING FACE}" * 1000
ONE_EVENT = event_source.BATCH_SIZE * (4_000 + 3_000)
"""Bytes of a batch of workspaces with the longest descriptions, a tenth of all workspaces."""
STREAMS = 32
MEBIBYTE = 1 << 20


async def insert_many_workspaces(api: Api, owner: str, count: int) -> None:
    """Insert workspaces with long texts into the database, because the API would take too long."""
    now = utc_now()
    rows = [
        {
            "id": f"01aaaaaaaaaaaaaaaaaaaa{number:04d}",
            "owner_id": api.ids[owner],
            "name": f"w{number}",
            "description": DESCRIPTION,
            "memo": MEMO,
            "image_ref": "code-server",
            "instance_backend": "process",
            "storage_backend": "local-dir",
            "home_store_key": f"key-{number}",
            "desired_state": "STANDBY",
            "last_access_at": now,
            "conditions": conditions_json(initial_conditions(now)),
            "phase": "PENDING",
            "phase_changed_at": now,
            "created_at": now,
            "updated_at": now,
        }
        for number in range(count)
    ]
    async with api.engine.begin() as conn:
        await conn.execute(insert(workspaces), rows)


async def another_session(api: Api, name: str) -> str:
    async with api.engine.begin() as conn:
        return await sessions.open_session(conn, api.ids[name], utc_now())


async def open_unread(path: Path, session_id: str, stack: AsyncExitStack) -> asyncio.StreamReader:
    """Open a stream and read no more than a few kilobytes of it."""
    reader, writer = await asyncio.open_unix_connection(str(path), limit=1024)
    stack.callback(writer.close)
    head = f"GET /api/v1/events HTTP/1.1\r\nHost: x\r\nCookie: session={session_id}\r\n\r\n"
    writer.write(head.encode())
    return reader


def buffered_bytes(served: ServedApi) -> list[int]:
    """Return the bytes that the server buffers for each connection."""
    found = served.server.server_state.connections
    return [item.transport.get_write_buffer_size() for item in found if isinstance(item, ApiProtocol)]


async def test_unread_streams_buffer_one_event_each(served: ServedApi) -> None:
    await served.api.quick_client("alice", Role.USER)
    await insert_many_workspaces(served.api, "alice", 200)
    ids = [await another_session(served.api, "alice") for _ in range(4)]
    async with AsyncExitStack() as stack:
        for number in range(STREAMS):
            await open_unread(served.socket, ids[number % 4], stack)
        await until(lambda: sum(map(bool, buffered_bytes(served))) == STREAMS, "every stream to block")
        await publish(served.redis, [resync_message(PREFIX)] * 20)
        assert max(buffered_bytes(served)) <= ONE_EVENT
    await until(lambda: buffered_bytes(served) == [], "the connections to be closed")


async def test_unread_streams_cost_an_api_process_little_memory(api: Api, tmp_path: Path) -> None:
    """Resident memory grew by 532 MiB with memos and whole snapshots, and by 28 MiB without."""
    await api.quick_client("alice", Role.USER)
    await insert_many_workspaces(api, "alice", 200)
    ids = [await another_session(api, "alice") for _ in range(4)]
    with api_process(api, tmp_path / "separate.sock") as process:
        async with AsyncExitStack() as stack:
            await read_beginning(await open_unread(tmp_path / "separate.sock", ids[0], stack))
            before = process.memory_info().rss
            for number in range(1, STREAMS):
                await read_beginning(await open_unread(tmp_path / "separate.sock", ids[number % 4], stack))
            assert process.memory_info().rss - before < 64 * MEBIBYTE
        await until(lambda: len(process.net_connections("unix")) < STREAMS, "the connections to be closed")
        assert process.memory_info().rss - before < 64 * MEBIBYTE


@contextmanager
def api_process(api: Api, path: Path) -> Iterator[psutil.Process]:
    """Run `codehub serve api` in a separate process."""
    environment = os.environ | {
        "DATABASE_URL": api.settings.database_url,
        "REDIS_URL": api.settings.redis_url,
        "CODEHUB_DATA_DIR": str(api.settings.data_dir),
        "API_LISTEN": f"unix:{path}",
    }
    command = [sys.executable, "-m", "codehub", "serve", "api"]
    process = subprocess.Popen(command, env=environment, preexec_fn=die_with_parent(signal.SIGKILL))
    try:
        wait_for(path.exists, "the API to listen")
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(PATIENCE)


async def read_beginning(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(PATIENCE):
        await reader.readuntil(b"event: snapshot")


async def test_a_client_that_does_not_read_is_disconnected(
    served: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uvicorn_protocol, "STALL_SECONDS", 0.2)
    monkeypatch.setattr(events, "CLOSE_SECONDS", 0.1)
    await served.api.quick_client("alice", Role.USER)
    await insert_many_workspaces(served.api, "alice", 200)
    session_id = await another_session(served.api, "alice")
    async with AsyncExitStack() as stack:
        await open_unread(served.socket, session_id, stack)
        await until(lambda: buffered_bytes(served), "the stream to begin")
        await until(lambda: buffered_bytes(served) == [], "the server to close the connection")


async def test_a_snapshot_in_batches_has_every_workspace_once(served: ServedApi) -> None:
    alice = await served.api.quick_client("alice", Role.USER)
    await insert_many_workspaces(served.api, "alice", 2 * event_source.BATCH_SIZE + 1)
    seen: list[str] = []
    more_flags: list[bool] = []
    async with served.stream(alice) as stream:
        while not more_flags or more_flags[-1]:
            name, data = await stream.next()
            assert name == "snapshot"
            seen += [item["id"] for item in data["items"]]
            more_flags.append(data["more"])
            assert not any("memo" in item for item in data["items"])
    assert more_flags == [True, True, False]
    assert len(seen) == len(set(seen)) == 2 * event_source.BATCH_SIZE + 1


async def test_no_change_is_missed_while_a_snapshot_is_sent(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_source, "BATCH_SIZE", 2)
    alice = await api.quick_client("alice", Role.USER)
    made = [await api.workspace(alice, name=f"w{number}") for number in range(5)]
    services = api.app.state.services
    async with api.engine.connect() as conn:
        session = await credentials.find_session(
            conn, sessions.hash_session_id(alice.cookies["session"]), utc_now()
        )
    assert session is not None
    feed = Feed()
    feed.start_over()
    client = Client()
    stream = EventSource(session, services).events(feed)
    client.apply(await anext(stream))
    new = await api.workspace(alice, name="new")
    await alice.patch(f"/api/v1/workspaces/{made[4]['id']}", json={"name": "renamed, already sent"})
    await alice.patch(f"/api/v1/workspaces/{made[0]['id']}", json={"name": "renamed, not yet sent"})
    await alice.delete(f"/api/v1/workspaces/{made[3]['id']}")
    for changed in (new, made[4], made[0], made[3]):
        feed.hint(changed["id"])
    while len(client.events) < 3 + 4:
        client.apply(await anext(stream))
    now = (await alice.get("/api/v1/workspaces")).json()["items"]
    assert client.workspaces == {item["id"]: item for item in now}


class Client:
    """Client that applies events as the dashboard does."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.workspaces: dict[str, Any] = {}
        self._batches: dict[str, Any] = {}

    def apply(self, event: bytes) -> None:
        fields = dict(line.split(": ", 1) for line in event.decode().splitlines() if line)
        data = httpx.Response(200, text=fields["data"]).json()
        self.events.append(fields["event"])
        match fields["event"]:
            case "snapshot":
                self._batches |= {item["id"]: item for item in data["items"]}
                if not data["more"]:
                    self.workspaces, self._batches = self._batches, {}
            case "workspace_updated":
                self.workspaces[data["id"]] = data
            case "workspace_deleted":
                self.workspaces.pop(data["id"], None)


async def test_beyond_its_bound_a_session_keeps_its_newest_streams(
    served: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_streams, "MAX_PER_SESSION", 2)
    alice = await served.api.quick_client("alice", Role.USER)
    async with served.stream(alice) as oldest, served.stream(alice) as second:
        assert (await oldest.next())[0] == (await second.next())[0] == "snapshot"
        async with served.stream(alice) as newest:
            assert (await newest.next())[0] == "snapshot"
            assert (await oldest.next())[0] == "end"
            await publish(served.redis, [resync_message(PREFIX)])
            assert (await second.next())[0] == (await newest.next())[0] == "snapshot"


async def test_beyond_the_bound_of_its_user_another_session_gets_429(
    served: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_streams, "MAX_PER_USER", 1)
    alice = await served.api.quick_client("alice", Role.USER)
    session_id = await another_session(served.api, "alice")
    transport = httpx.AsyncHTTPTransport(uds=str(served.socket))
    elsewhere = httpx.AsyncClient(transport=transport, base_url=BASE, cookies={"session": session_id})
    bob = await served.api.quick_client("bob", Role.USER)
    async with elsewhere, served.stream(alice) as stream:
        await stream.next()
        refused = await elsewhere.get("/api/v1/events")
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) > 0
        assert refused.json()["error"]["code"] == "TOO_MANY_REQUESTS"
        async with served.stream(bob) as other:
            assert (await other.next())[0] == "snapshot"


async def test_lists_have_no_memo_but_the_workspace_has(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    root = await api.quick_client("root", Role.ADMIN)
    made = await api.workspace(alice)
    path = f"/api/v1/workspaces/{made['id']}"
    assert (await alice.patch(path, json={"memo": "mine"})).json()["memo"] == "mine"
    assert (await alice.get(path)).json()["memo"] == "mine"
    for listing in (await alice.get("/api/v1/workspaces"), await root.get("/api/v1/admin/workspaces")):
        assert [item["id"] for item in listing.json()["items"]] == [made["id"]]
        assert "memo" not in listing.json()["items"][0]
    async with api.engine.begin() as conn:
        await conn.execute(update(workspaces).values(phase="ERROR", error_reason="DataLost"))
    errors = (await root.get("/api/v1/admin/overview")).json()["errors"]
    assert [item["id"] for item in errors] == [made["id"]] and "memo" not in errors[0]
