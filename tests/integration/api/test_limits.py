"""Limits are exact, however many ask at once."""

import asyncio

from codehub.domain.states import Role
from tests.integration.api.conftest import Api


async def test_fifty_parallel_starts_never_exceed_the_limit(api: Api) -> None:
    alice = await api.person_quickly("alice", Role.USER)
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


async def test_over_the_limit_is_429_and_creates_nothing(api: Api) -> None:
    alice = await api.person_quickly("alice", Role.USER)
    for number in range(2):
        await api.workspace(alice, name=f"w{number}", desired_state="RUNNING")
    refused = await alice.post("/api/v1/workspaces", json={"name": "third"})
    assert refused.status_code == 429 and refused.json()["error"]["code"] == "RUNNING_LIMIT_EXCEEDED"
    assert int(refused.headers["retry-after"]) > 0
    assert (await alice.get("/api/v1/workspaces")).json()["total"] == 2
    assert (await api.workspace(alice, name="resting", desired_state="ARCHIVED"))[
        "desired_state"
    ] == "ARCHIVED"


async def test_creating_while_the_user_is_deleted_leaves_nothing_behind(api: Api) -> None:
    root = await api.person_quickly("root", Role.ADMIN)
    for attempt in range(5):
        name = f"user-{attempt}"
        somebody = await api.person_quickly(name, Role.USER)
        body = {"name": "late", "desired_state": "STANDBY"}
        creates = [somebody.post("/api/v1/workspaces", json=body) for _ in range(4)]
        await asyncio.gather(*creates, root.delete(f"/api/v1/users/{api.ids[name]}"))
    living = (await root.get("/api/v1/admin/workspaces")).json()
    assert living == {"items": [], "total": 0}
