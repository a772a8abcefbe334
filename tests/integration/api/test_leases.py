"""Leases, and why a workspace is still running, through the API."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import event, insert

from codehub.database.tables import execs
from codehub.domain.states import Role
from codehub.ulids import new_id
from tests.integration.api.conftest import Api

RUNNING = {"phase": "RUNNING", "desired_state": "RUNNING"}


async def running(api: Api, client: httpx.AsyncClient, **values: Any) -> str:
    """Return the path of a new workspace that runs."""
    made = await api.workspace(client, **values)
    await api.set(made["id"], **RUNNING)
    return f"/api/v1/workspaces/{made['id']}"


async def start_command(api: Api, path: str, timeout: float | None = None) -> datetime:
    """Insert a command that runs, and return its start."""
    now = datetime.now(UTC)
    async with api.engine.begin() as conn:
        await conn.execute(
            insert(execs).values(
                id=new_id(), workspace_id=path.rsplit("/", 1)[1], actor_id="x", actor_name="ci",
                by_token=True, command=["make"], cwd="/", tty=False, timeout_seconds=timeout,
                state="running", created_at=now, started_at=now, seen_at=now,
            )
        )  # fmt: skip
    return now


async def test_a_lease_is_created_listed_renewed_and_deleted(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    path = await running(api, alice)
    made = await alice.post(f"{path}/leases", json={"seconds": 3600, "reason": "  nightly build "})
    assert made.status_code == 201
    lease = made.json()
    assert (lease["reason"], lease["actor"]) == ("nightly build", "alice")
    assert seconds(lease["created_at"], lease["expires_at"]) == 3600
    assert (await alice.get(f"{path}/leases")).json() == {"items": [lease]}
    renewed = (await alice.put(f"{path}/leases/{lease['id']}", json={"seconds": 7200})).json()
    assert renewed["id"] == lease["id"] and seconds(lease["created_at"], renewed["expires_at"]) > 7200
    assert (await alice.delete(f"{path}/leases/{lease['id']}")).status_code == 204
    assert (await alice.get(f"{path}/leases")).json() == {"items": []}
    for answer in (
        await alice.delete(f"{path}/leases/{lease['id']}"),
        await alice.put(f"{path}/leases/{lease['id']}", json={"seconds": 60}),
        await alice.delete(f"{path}/leases/not-an-id"),
    ):
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "NOT_FOUND"


@pytest.mark.parametrize(
    "body",
    [
        {"seconds": 86_401, "reason": "x"},
        {"seconds": 0, "reason": "x"},
        {"seconds": 60},
        {"seconds": 60, "reason": "  "},
        {"seconds": 60, "reason": "x" * 201},
        {"seconds": 60, "reason": "two\nlines"},
        {"seconds": "60", "reason": "x"},
    ],
)
async def test_an_invalid_lease_is_rejected(api: Api, body: dict[str, Any]) -> None:
    alice = await api.quick_client("alice", Role.USER)
    path = await running(api, alice)
    assert (await alice.post(f"{path}/leases", json=body)).status_code == 422


async def test_a_lease_is_not_reached_through_another_workspace(api: Api) -> None:
    alice, bob = [await api.quick_client(name, Role.USER) for name in ("alice", "bob")]
    path, other = await running(api, alice), await running(api, bob)
    lease = (await alice.post(f"{path}/leases", json={"seconds": 60, "reason": "x"})).json()
    assert (await bob.delete(f"{other}/leases/{lease['id']}")).status_code == 404
    assert len((await alice.get(f"{path}/leases")).json()["items"]) == 1


async def test_a_workspace_says_why_it_runs_and_when_it_stops(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    path = await running(api, alice)

    async def standby() -> dict[str, Any]:
        shown = (await alice.get(path)).json()
        assert shown["standby_at"] == shown["standby"]["at"]
        (listed,) = (await alice.get("/api/v1/workspaces")).json()["items"]
        assert listed["standby"] == shown["standby"], "lists say the same"
        found: dict[str, Any] = shown["standby"]
        return found

    assert (await standby())["code"] == "idle"
    lease = (await alice.post(f"{path}/leases", json={"seconds": 3600, "reason": "nightly build"})).json()
    held = await standby()
    assert (held["code"], held["until"], held["lease_reason"]) == (
        "lease", lease["expires_at"], "nightly build",
    )  # fmt: skip
    assert seconds(held["until"], held["at"]) == held["ttl_seconds"] == 600
    assert held["reason"].startswith("Kept awake by a lease until ")
    begun = await start_command(api, path)
    held = await standby()
    assert (held["code"], held["commands"]) == ("command", 1)
    assert datetime.fromisoformat(held["since"]) == begun
    assert held["reason"].startswith("Running a command since ")
    assert seconds(begun.isoformat(), held["at"]) < 259_200 + 600 + 1
    await api.set(path.rsplit("/", 1)[1], standby_ttl_seconds=0)
    never = await standby()
    assert (never["code"], never["at"], never["reason"]) == ("never", None, "Never stops when unused.")
    await api.set(path.rsplit("/", 1)[1], phase="STANDBY", desired_state="STANDBY")
    assert (await alice.get(path)).json()["standby"] is None


async def test_only_what_runs_is_explained_and_a_list_needs_one_more_query(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)

    async def queries() -> int:
        sent: list[str] = []

        def record(_conn: object, _cursor: object, statement: str, *_rest: object) -> None:
            sent.append(statement)

        engine = api.app.state.services.engine.sync_engine
        event.listen(engine, "before_cursor_execute", record)
        assert (await alice.get("/api/v1/workspaces")).status_code == 200
        event.remove(engine, "before_cursor_execute", record)
        return len(sent)

    await api.workspace(alice, name="paused")
    none = await queries()
    for number in range(3):
        path = await running(api, alice, name=f"running {number}")
        await start_command(api, path)
        await alice.post(f"{path}/leases", json={"seconds": 60, "reason": "x"})
        assert await queries() == none + 1


async def test_a_person_who_extends_takes_responsibility_again(api: Api) -> None:
    """`keep_until` is a person's own act, so the longest time for programs counts from it."""
    alice = await api.quick_client("alice", Role.USER)
    path = await running(api, alice)
    long_ago = datetime.now(UTC) - timedelta(days=30)
    await api.set(
        path.rsplit("/", 1)[1], person_access_at=long_ago, last_access_at=long_ago, phase_changed_at=long_ago
    )
    await start_command(api, path)
    assert (await alice.get(path)).json()["standby"]["code"] == "limit"
    extended = (await alice.post(f"{path}/extend", json={"seconds": 3600})).json()
    assert extended["standby"]["code"] == "command"


async def test_what_a_token_does_is_no_use_by_a_person(api: Api) -> None:
    """A program that starts and extends keeps it awake no longer than programs may."""
    alice = await api.quick_client("alice", Role.USER)
    program = await api.token_client("alice", "manage", "use", "read")
    made = await api.workspace(alice)
    path = f"/api/v1/workspaces/{made['id']}"
    long_ago = datetime.now(UTC) - timedelta(days=30)
    await api.set(made["id"], phase="STANDBY", person_access_at=long_ago, last_access_at=long_ago)
    started = (await program.patch(path, json={"desired_state": "RUNNING"})).json()
    assert started["last_access_at"] > made["last_access_at"]
    await api.set(made["id"], phase="RUNNING", phase_changed_at=long_ago)
    assert (await program.get(path)).json()["standby"]["code"] == "limit"
    refused = await program.post(f"{path}/extend", json={"seconds": 3600})
    assert refused.status_code == 409 and "A person can" in refused.json()["error"]["message"]
    lease = (await program.post(f"{path}/leases", json={"seconds": 60, "reason": "x"})).json()
    assert lease["actor"] == "alice (token ci)"
    assert (await program.get(path)).json()["standby"]["code"] == "limit"
    stopped = await alice.patch(path, json={"desired_state": "STANDBY"})
    await api.set(made["id"], phase="STANDBY")
    assert stopped.status_code == 200
    await alice.patch(path, json={"desired_state": "RUNNING"})
    await api.set(made["id"], phase="RUNNING")
    assert (await alice.get(path)).json()["standby"]["code"] == "lease"


def seconds(earlier: str, later: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()
