"""Limits are exact under concurrent calls."""

import asyncio
from datetime import UTC, datetime

import pytest
from sqlalchemy import func, select

from codehub.database import sessions, tables
from codehub.database.advisory_locks import AdvisoryLock, hold_lock
from codehub.domain.states import Role
from codehub.settings import Settings
from tests.integration.api.conftest import Api


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"limits_max_workspaces_per_user": 12})


async def test_fifty_parallel_starts_never_exceed_the_limit(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    made = [await api.workspace(alice, name=f"w{number}") for number in range(10)]

    async def start(index: int) -> int:
        workspace_id = made[index % len(made)]["id"]
        body = {"desired_state": "RUNNING"}
        return (await alice.patch(f"/api/v1/workspaces/{workspace_id}", json=body)).status_code

    async def create(index: int) -> int:
        return (await alice.post("/api/v1/workspaces", json={"name": f"new {index}"})).status_code

    calls = [start(index) for index in range(25)] + [create(index) for index in range(25)]
    statuses = await asyncio.gather(*calls)
    assert set(statuses) <= {200, 201, 429}
    listed = (await alice.get("/api/v1/workspaces?limit=200")).json()
    running = [item for item in listed["items"] if item["desired_state"] == "RUNNING"]
    assert len(running) == 2
    assert listed["total"] == 10 + statuses.count(201)
    assert (await alice.get("/api/v1/session")).json()["limits"] == {"max_running_per_user": 2, "running": 2}


async def test_a_create_above_the_limit_is_a_429_and_creates_nothing(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    for number in range(2):
        await api.workspace(alice, name=f"w{number}", desired_state="RUNNING")
    refused = await alice.post("/api/v1/workspaces", json={"name": "third"})
    assert refused.status_code == 429 and refused.json()["error"]["code"] == "RUNNING_LIMIT_EXCEEDED"
    assert int(refused.headers["retry-after"]) > 0
    assert (await alice.get("/api/v1/workspaces")).json()["total"] == 2
    assert (await api.workspace(alice, name="archived", desired_state="ARCHIVED"))[
        "desired_state"
    ] == "ARCHIVED"


async def test_creating_while_the_user_is_deleted_leaves_no_workspace(api: Api) -> None:
    root = await api.quick_client("root", Role.ADMIN)
    for attempt in range(5):
        name = f"user-{attempt}"
        somebody = await api.quick_client(name, Role.USER)
        body = {"name": "late", "desired_state": "STANDBY"}
        creates = [somebody.post("/api/v1/workspaces", json=body) for _ in range(4)]
        await asyncio.gather(*creates, root.delete(f"/api/v1/users/{api.ids[name]}"))
    living = (await root.get("/api/v1/admin/workspaces")).json()
    assert living == {"items": [], "total": 0}


async def test_parallel_creates_never_exceed_the_number_of_workspaces(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    body = {"name": "one more", "desired_state": "STANDBY"}
    answers = await asyncio.gather(*(alice.post("/api/v1/workspaces", json=body) for _ in range(20)))
    assert sorted(answer.status_code for answer in answers) == [201] * 12 + [429] * 8
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.json()["error"]["code"] == "WORKSPACE_LIMIT_EXCEEDED"
    assert "12 of 12 workspaces" in refused.json()["error"]["message"]
    assert (await alice.get("/api/v1/workspaces")).json()["total"] == 12
    bob = await api.quick_client("bob", Role.USER)
    assert (await bob.post("/api/v1/workspaces", json=body)).status_code == 201


async def test_a_full_trash_blocks_creates_but_not_an_undelete(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    body = {"name": "one more", "desired_state": "STANDBY"}
    for _ in range(24):
        made = await api.workspace(alice)
        assert (await alice.delete(f"/api/v1/workspaces/{made['id']}")).status_code == 204
    refused = await alice.post("/api/v1/workspaces", json=body)
    assert refused.status_code == 429 and "24 in the trash" in refused.json()["error"]["message"]
    assert (await alice.post(f"/api/v1/workspaces/{made['id']}/undelete")).status_code == 200


async def test_a_workspace_returns_from_the_trash_only_within_the_limit(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    deleted = await api.workspace(alice)
    path = f"/api/v1/workspaces/{deleted['id']}"
    await alice.delete(path)
    others = [await api.workspace(alice, name=f"w{number}") for number in range(12)]
    refused = await alice.post(f"{path}/undelete")
    assert refused.status_code == 429 and refused.json()["error"]["code"] == "WORKSPACE_LIMIT_EXCEEDED"
    await alice.delete(f"/api/v1/workspaces/{others[0]['id']}")
    assert (await alice.post(f"{path}/undelete")).status_code == 200


async def test_the_concurrent_calls_of_one_user_are_bounded(api: Api) -> None:
    alice, bob = [await api.quick_client(name, Role.USER) for name in ("alice", "bob")]
    body = {"name": "one", "desired_state": "STANDBY"}
    async with api.engine.begin() as conn:
        await hold_lock(conn, AdvisoryLock.LIMITS)  # every create waits for this
        calls = [asyncio.create_task(alice.post("/api/v1/workspaces", json=body)) for _ in range(70)]
        rejected, _waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        assert (await bob.get("/api/v1/session")).status_code == 200
        for call in rejected:
            assert call.result().status_code == 429 and int(call.result().headers["retry-after"]) > 0
            assert call.result().json()["error"]["code"] == "TOO_MANY_REQUESTS"
    answers = [call.result() for call in calls if await call]
    codes = [answer.json().get("error", {}).get("code", "made") for answer in answers]
    assert codes.count("TOO_MANY_REQUESTS") == 70 - 64
    assert codes.count("made") == 12


async def test_beyond_the_bound_the_oldest_session_is_signed_out(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_PER_USER", 3)
    bob = await api.signed_in_client("bob")
    oldest, *newer = [await api.signed_in_client("alice") for _ in range(4)]
    assert (await oldest.get("/api/v1/session")).status_code == 401
    for client in (*newer, bob):
        assert (await client.get("/api/v1/session")).status_code == 200
    await asyncio.gather(*(api.signed_in_client("alice") for _ in range(5)))
    async with api.engine.connect() as conn:
        counted = select(func.count()).select_from(tables.sessions)
        assert await conn.scalar(counted.where(tables.sessions.c.user_id == api.ids["alice"])) == 3


async def test_archives_count_towards_the_limit_but_never_block_a_delete(
    settings: Settings,
) -> None:
    limited = settings.model_copy(update={"limits_max_archive_bytes_per_user": 1000})
    async with Api.running(limited) as api:
        ada, eve = [await api.quick_client(name, Role.USER) for name in ("ada", "eve")]
        root = await api.quick_client("root", Role.ADMIN)
        kept, deleted = await api.workspace(ada), await api.workspace(ada)
        await api.add_archive(kept["id"], 600)
        assert (await ada.get("/api/v1/session")).json()["archives"] == {"bytes": 600, "max_bytes": 1000}
        await api.workspace(ada, name="still within the limit")
        await api.add_archive(deleted["id"], 400)
        await api.add_archive(kept["id"], 5000, removed_at=datetime.now(UTC))
        assert (await ada.delete(f"/api/v1/workspaces/{deleted['id']}")).status_code == 204
        refused = await ada.post("/api/v1/workspaces", json={"name": "one too many"})
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "ARCHIVE_LIMIT_EXCEEDED"
        assert "1000 bytes of 1000 bytes" in refused.json()["error"]["message"]
        await api.workspace(eve)
        listed = (await root.get("/api/v1/users")).json()["items"]
        assert {item["username"]: item["archive_bytes"] for item in listed} == {
            "ada": 1000,
            "eve": 0,
            "root": 0,
        }
        path = f"/api/v1/workspaces/{kept['id']}"
        assert (await ada.patch(path, json={"desired_state": "ARCHIVED"})).status_code == 200
        assert (await ada.delete(path)).status_code == 204
