"""Gate functions for leases."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.database import gate, lease_gate, workspace_queries
from codehub.database.holds import read_holds
from codehub.database.tables import execs, leases, workspaces
from codehub.domain.awake import MAX_LEASES, Lease
from codehub.domain.problems import InvalidState, NotFound, TooManyRequests
from codehub.domain.states import DesiredState
from tests.integration.database.conftest import create

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
RUNNING = {"phase": "RUNNING", "desired_state": "RUNNING"}


async def running(engine: AsyncEngine) -> str:
    async with engine.begin() as conn:
        workspace = await create(conn, desired=DesiredState.RUNNING)
        await conn.execute(update(workspaces).values(**RUNNING))
    return workspace.id


async def begin(engine: AsyncEngine, workspace_id: str, now: datetime = NOW) -> Lease:
    async with engine.begin() as conn:
        return await lease_gate.create_lease(
            conn, workspace_id, actor_id="one", actor="ci", reason="a build", length=HOUR, now=now
        )


@pytest.mark.parametrize(
    "state",
    [
        {"phase": "STANDBY", "desired_state": "STANDBY"},
        {"phase": "STANDBY", "desired_state": "RUNNING"},
        {"phase": "RUNNING", "desired_state": "STANDBY"},
        {**RUNNING, "operation": "STARTING", "op_id": "x", "op_started_at": NOW},
    ],
    ids=["paused", "starting", "stopping", "busy"],
)
async def test_a_lease_holds_only_a_running_workspace(engine: AsyncEngine, state: dict[str, Any]) -> None:
    workspace_id = await running(engine)
    async with engine.begin() as conn:
        await conn.execute(update(workspaces).values(**state))
    with pytest.raises(InvalidState, match="not running"):
        await begin(engine, workspace_id)


async def test_a_lease_is_renewed_listed_and_ended_and_the_timeline_reports_it(engine: AsyncEngine) -> None:
    workspace_id = await running(engine)
    lease = await begin(engine, workspace_id)
    async with engine.begin() as conn:
        later = await lease_gate.renew_lease(
            conn, workspace_id, lease.id, length=2 * HOUR, now=NOW + HOUR / 2
        )
        assert later.expires_at == NOW + 2.5 * HOUR
        assert (await gate.lock_workspace(conn, workspace_id)).holds_changed_at == NOW + HOUR / 2
        assert await lease_gate.list_leases(conn, workspace_id, NOW + 2 * HOUR) == [later]
        assert await lease_gate.list_leases(conn, workspace_id, later.expires_at) == []
        assert (await read_holds(conn, [workspace_id, "unknown"]))[workspace_id].leases == (later,)
        await lease_gate.end_lease(conn, workspace_id, lease.id, actor="two", now=NOW + HOUR)
        assert (await gate.lock_workspace(conn, workspace_id)).holds_changed_at == NOW + HOUR
        assert await read_holds(conn, [workspace_id]) == {}
        entries = await workspace_queries.timeline_of(conn, workspace_id)
    assert [(entry.actor, entry.message) for entry in entries[:2]] == [
        ("two", "No longer kept awake by a lease: a build"),
        ("ci", "Kept awake by a lease until 2026-03-01 13:00 UTC: a build"),
    ]


async def test_an_expired_lease_is_neither_renewed_nor_ended(engine: AsyncEngine) -> None:
    workspace_id = await running(engine)
    lease = await begin(engine, workspace_id)
    async with engine.begin() as conn:
        late = lease.expires_at
        with pytest.raises(NotFound, match="expired"):
            await lease_gate.renew_lease(conn, workspace_id, lease.id, length=HOUR, now=late)
        with pytest.raises(NotFound, match="expired"):
            await lease_gate.end_lease(conn, workspace_id, lease.id, actor="one", now=late)


async def test_a_workspace_has_a_bounded_number_of_leases_that_have_not_expired(engine: AsyncEngine) -> None:
    workspace_id = await running(engine)
    for number in range(MAX_LEASES):
        await begin(engine, workspace_id, NOW + timedelta(seconds=number))
    with pytest.raises(TooManyRequests, match=str(MAX_LEASES)):
        await begin(engine, workspace_id, NOW + HOUR - timedelta(seconds=1))
    await begin(engine, workspace_id, NOW + HOUR)


async def test_expired_leases_are_removed_in_batches_and_their_end_is_kept(engine: AsyncEngine) -> None:
    workspace_id, other = await running(engine), await running(engine)
    for number in range(5):
        await begin(engine, workspace_id, NOW + timedelta(minutes=number))
    await begin(engine, other)
    end = NOW + HOUR + timedelta(minutes=3)
    async with engine.begin() as conn:
        assert await lease_gate.remove_expired(conn, end, 2) == 2
        assert await lease_gate.remove_expired(conn, end, 10) == 3
        assert await lease_gate.remove_expired(conn, end, 10) == 0
        assert (await gate.lock_workspace(conn, workspace_id)).holds_changed_at == end
        left = await conn.execute(select(leases.c.expires_at))
        assert list(left.scalars()) == [end + timedelta(minutes=1)]


async def test_the_end_of_a_lease_never_moves_holds_changed_at_back(engine: AsyncEngine) -> None:
    workspace_id = await running(engine)
    await begin(engine, workspace_id)
    newer = NOW + 3 * HOUR
    async with engine.begin() as conn:
        await conn.execute(update(workspaces).values(holds_changed_at=newer))
        assert await lease_gate.remove_expired(conn, NOW + 2 * HOUR, 10) == 1
        assert (await gate.lock_workspace(conn, workspace_id)).holds_changed_at == newer


async def test_leases_of_a_locked_workspace_wait_and_those_of_others_do_not(engine: AsyncEngine) -> None:
    locked, other = await running(engine), await running(engine)
    for workspace_id in (locked, other):
        await begin(engine, workspace_id)
    async with engine.begin() as holder, engine.begin() as conn:
        await gate.lock_workspace(holder, locked)
        assert await lease_gate.remove_expired(conn, NOW + HOUR, 10) == 1
        left = await conn.execute(select(leases.c.workspace_id))
        assert list(left.scalars()) == [locked]


async def test_commands_that_have_ended_do_not_hold(engine: AsyncEngine) -> None:
    workspace_id = await running(engine)
    common = {
        "workspace_id": workspace_id, "actor_id": "one", "actor_name": "one", "by_token": True,
        "command": ["true"], "cwd": "/", "tty": False, "created_at": NOW, "seen_at": NOW + HOUR,
    }  # fmt: skip
    async with engine.begin() as conn:
        for number, state in enumerate(("starting", "running", "exited", "killed", "lost")):
            started = None if state == "starting" else NOW + HOUR / 2
            values = {**common, "id": str(number), "state": state, "started_at": started}
            await conn.execute(insert(execs).values(**values, timeout_seconds=1e300))
        found = (await read_holds(conn, [workspace_id]))[workspace_id]
    assert sorted(command.started_at for command in found.commands) == [NOW, NOW + HOUR / 2]
