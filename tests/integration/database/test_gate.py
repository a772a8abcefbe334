"""The gate: requests of users, with exact limits."""

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.database import gate, gateway_queries
from codehub.database.advisory_locks import AdvisoryLock, hold_lock
from codehub.database.row_mapping import to_workspace
from codehub.database.tables import workspaces
from codehub.domain.problems import (
    InvalidState,
    OperationInProgress,
    Problem,
    RunningLimitExceeded,
    ValidationFailed,
    WorkspaceNotFound,
)
from codehub.domain.states import DesiredState, ErrorReason, Phase
from codehub.domain.ttl import TtlDefaults
from codehub.domain.user_limits import Limits, counts_as_running
from tests.integration.database.conftest import LIMITS, create
from tests.waiting import PATIENCE

RUNNING, STANDBY = DesiredState.RUNNING, DesiredState.STANDBY
HOUR = timedelta(hours=1)


async def change(engine: AsyncEngine, workspace_id: str, **values: object) -> None:
    async with engine.begin() as conn:
        await conn.execute(update(workspaces).where(workspaces.c.id == workspace_id).values(**values))


async def create_one(engine: AsyncEngine, owner: str = "one", desired: DesiredState = STANDBY) -> str:
    async with engine.begin() as conn:
        return (await create(conn, owner, desired)).id


async def set_desired_state(engine: AsyncEngine, workspace_id: str, desired: DesiredState) -> None:
    async with engine.begin() as conn:
        await gate.set_desired_state(
            conn, workspace_id, desired, actor="one", limits=LIMITS, now=datetime.now(UTC)
        )


def busy() -> dict[str, object]:
    return {"operation": "STARTING", "op_id": "x", "op_started_at": datetime.now(UTC)}


async def test_fifty_parallel_starts_never_exceed_the_limit(engine: AsyncEngine) -> None:
    ids = [await create_one(engine) for _ in range(50)]
    outcomes = await asyncio.gather(
        *(set_desired_state(engine, item, RUNNING) for item in ids), return_exceptions=True
    )
    assert outcomes.count(None) == LIMITS.per_user
    assert sum(isinstance(item, RunningLimitExceeded) for item in outcomes) == 50 - LIMITS.per_user


async def test_starts_at_the_limit_are_rejected_without_waiting_for_the_lock(engine: AsyncEngine) -> None:
    """Each visit of a paused workspace is one, also while others create and start workspaces."""
    running = [await create_one(engine, desired=RUNNING) for _ in range(LIMITS.per_user)]
    paused = await create_one(engine)
    async with engine.begin() as conn:
        await hold_lock(conn, AdvisoryLock.LIMITS)
        for _ in range(20):
            with pytest.raises(RunningLimitExceeded):
                await asyncio.wait_for(set_desired_state(engine, paused, RUNNING), PATIENCE)
        for workspace_id in running:  # starts already
            await asyncio.wait_for(set_desired_state(engine, workspace_id, RUNNING), PATIENCE)


async def test_fifty_parallel_creates_reach_exactly_the_limit(engine: AsyncEngine) -> None:
    outcomes = await asyncio.gather(
        *(create_one(engine, desired=RUNNING) for _ in range(50)), return_exceptions=True
    )
    assert sum(isinstance(item, str) for item in outcomes) == LIMITS.per_user
    async with engine.connect() as conn:
        assert await conn.scalar(select(func.count()).select_from(workspaces)) == LIMITS.per_user


async def test_the_installation_has_a_limit_too(engine: AsyncEngine) -> None:
    for owner in ("one", "one", "two"):
        await create_one(engine, owner, RUNNING)
    with pytest.raises(RunningLimitExceeded, match="installation"):
        await create_one(engine, "two", RUNNING)


async def test_a_terminal_error_does_not_count_but_a_container_does(engine: AsyncEngine) -> None:
    first, second = await create_one(engine, desired=RUNNING), await create_one(engine, desired=RUNNING)
    third = await create_one(engine)
    await change(engine, first, phase="ERROR", error_reason="Timeout")
    await set_desired_state(engine, third, RUNNING)
    with pytest.raises(RunningLimitExceeded):
        await create_one(engine, desired=RUNNING)
    await set_desired_state(engine, third, STANDBY)
    conditions = "storage.volume_ready"
    async with engine.connect() as conn:
        row = await conn.scalar(select(workspaces.c.conditions).where(workspaces.c.id == third))
    assert conditions in row
    row["infra.container_exists"]["status"] = "True"
    await change(engine, third, conditions=row)
    with pytest.raises(RunningLimitExceeded):
        await create_one(engine, desired=RUNNING)
    await set_desired_state(engine, second, STANDBY)
    await create_one(engine, desired=RUNNING)


async def recover(engine: AsyncEngine, workspace_id: str) -> None:
    async with engine.begin() as conn:
        await gate.recover(conn, workspace_id, actor="one", limits=LIMITS, source=None, now=datetime.now(UTC))


async def create_failed(engine: AsyncEngine) -> str:
    workspace_id = await create_one(engine, desired=RUNNING)
    await change(engine, workspace_id, phase="ERROR", error_reason="Timeout")
    return workspace_id


async def test_a_recovery_counts_against_the_limit(engine: AsyncEngine) -> None:
    failed = await create_failed(engine)
    for _ in range(2):
        await create_one(engine, desired=RUNNING)
    with pytest.raises(RunningLimitExceeded):
        await recover(engine, failed)


async def test_an_undelete_counts_against_the_limit(engine: AsyncEngine) -> None:
    workspace_id = await create_one(engine, desired=RUNNING)
    async with engine.connect() as conn:
        seen = await conn.scalar(select(workspaces.c.conditions).where(workspaces.c.id == workspace_id))
    for name in ("storage.volume_ready", "infra.container_ready"):
        seen[name]["status"] = "True"
    async with engine.begin() as conn:
        await gate.delete(conn, workspace_id, actor="one", now=datetime.now(UTC))
    await change(engine, workspace_id, conditions=seen)
    for _ in range(2):
        await create_one(engine, desired=RUNNING)
    with pytest.raises(RunningLimitExceeded):
        async with engine.begin() as conn:
            await gate.undelete(conn, workspace_id, actor="one", limits=LIMITS, now=datetime.now(UTC))


async def test_parallel_recoveries_never_exceed_the_limit(engine: AsyncEngine) -> None:
    ids = [await create_failed(engine) for _ in range(20)]
    outcomes = await asyncio.gather(*(recover(engine, item) for item in ids), return_exceptions=True)
    assert outcomes.count(None) == LIMITS.per_user
    assert sum(isinstance(item, RunningLimitExceeded) for item in outcomes) == 20 - LIMITS.per_user


async def test_the_same_workspaces_count_in_sql_and_in_the_domain(engine: AsyncEngine) -> None:
    workspace_id = await create_one(engine)
    async with engine.connect() as conn:
        seen = await conn.scalar(select(workspaces.c.conditions).where(workspaces.c.id == workspace_id))
    request = {"kind": "recover", "actor": "one", "source": None, "archive_op_id": None}
    reasons = (None, *ErrorReason)
    for desired, reason, pending, container in product(
        (RUNNING, STANDBY), reasons, (None, request), ("True", "False")
    ):
        seen["infra.container_exists"]["status"] = container
        values = {
            "desired_state": desired.value,
            "error_reason": reason,
            "request": pending,
            "conditions": seen,
        }
        await change(engine, workspace_id, **values)
        async with engine.connect() as conn:
            row = (await conn.execute(select(workspaces))).mappings().one()
            counted = await gate.usage(conn, "one")
            listed = await gateway_queries.counted_workspaces(conn, "one", besides="")
        assert counted.user == len(listed) == counts_as_running(to_workspace(row)), values
        assert bool(counted.everyone) == bool(listed)


@pytest.mark.parametrize("desired", [DesiredState.RUNNING, DesiredState.ARCHIVED])
async def test_a_new_desired_state_during_an_operation_is_409_and_the_same_one_is_not(
    engine: AsyncEngine, desired: DesiredState
) -> None:
    workspace_id = await create_one(engine)
    await change(engine, workspace_id, **busy())
    with pytest.raises(OperationInProgress):
        await set_desired_state(engine, workspace_id, desired)
    await set_desired_state(engine, workspace_id, STANDBY)


async def test_delete_and_undelete_wait_for_the_operation(engine: AsyncEngine) -> None:
    workspace_id = await create_one(engine)
    await change(engine, workspace_id, **busy())
    with pytest.raises(OperationInProgress):
        async with engine.begin() as conn:
            await gate.delete(conn, workspace_id, actor="one", now=datetime.now(UTC))
    idle = {"operation": "NONE", "op_id": None, "op_started_at": None}
    await change(engine, workspace_id, **idle)
    async with engine.begin() as conn:
        await gate.delete(conn, workspace_id, actor="one", now=datetime.now(UTC))
    await change(engine, workspace_id, **busy())
    with pytest.raises(OperationInProgress):
        async with engine.begin() as conn:
            await gate.undelete(conn, workspace_id, actor="one", limits=LIMITS, now=datetime.now(UTC))
    await change(engine, workspace_id, **idle, purged_at=datetime.now(UTC))
    with pytest.raises(WorkspaceNotFound):
        async with engine.begin() as conn:
            await gate.undelete(conn, workspace_id, actor="one", limits=LIMITS, now=datetime.now(UTC))


async def test_an_error_accepts_no_desired_state_until_it_is_recovered(engine: AsyncEngine) -> None:
    workspace_id = await create_one(engine)
    await change(engine, workspace_id, phase="ERROR", error_reason="Timeout")
    with pytest.raises(InvalidState):
        await set_desired_state(engine, workspace_id, RUNNING)
    async with engine.begin() as conn:
        recovering = await gate.recover(
            conn, workspace_id, actor="one", limits=LIMITS, source=None, now=datetime.now(UTC)
        )
    assert recovering.request is not None
    assert recovering.error_reason is not None, "only the controller clears the error"


async def test_a_recovery_from_an_archive_of_another_workspace_is_rejected(engine: AsyncEngine) -> None:
    workspace_id = await create_one(engine)
    await change(engine, workspace_id, phase="ERROR", error_reason="DataLost")
    source = gate.RecoverFrom(gate.RecoverSource.ARCHIVE, "nowhere")
    with pytest.raises(ValidationFailed, match="no such archive"):
        async with engine.begin() as conn:
            await gate.recover(
                conn, workspace_id, actor="one", limits=LIMITS, source=source, now=datetime.now(UTC)
            )


async def test_a_ttl_never_overwrites_a_newer_desired_state(engine: AsyncEngine) -> None:
    async with engine.begin() as conn:
        seen = await create(conn, desired=RUNNING)
    await set_desired_state(engine, seen.id, STANDBY)
    await set_desired_state(engine, seen.id, RUNNING)
    async with engine.begin() as conn:
        assert await gate.apply_expiry(conn, seen, STANDBY, "idle", now=datetime.now(UTC)) is None


async def test_last_access_only_moves_forward(engine: AsyncEngine) -> None:
    async with engine.begin() as conn:
        workspace = await create(conn)
    later = workspace.last_access_at + timedelta(minutes=5)
    async with engine.begin() as conn:
        await gate.advance_last_access(conn, {workspace.id: later, "unknown": later})
        await gate.advance_last_access(conn, {workspace.id: later - timedelta(minutes=1)})
        assert (await gate.lock_workspace(conn, workspace.id)).last_access_at == later


async def test_a_deleted_workspace_is_not_found(engine: AsyncEngine) -> None:
    workspace_id = await create_one(engine)
    async with engine.begin() as conn:
        await gate.delete(conn, workspace_id, actor="one", now=datetime.now(UTC))
    calls = (
        lambda conn: gate.set_desired_state(
            conn, workspace_id, RUNNING, actor="one", limits=LIMITS, now=datetime.now(UTC)
        ),
        lambda conn: gate.delete(conn, workspace_id, actor="one", now=datetime.now(UTC)),
        lambda conn: gate.cancel(conn, workspace_id, actor="one", now=datetime.now(UTC)),
        lambda conn: gate.edit(conn, workspace_id, {"memo": "x"}, now=datetime.now(UTC)),
        lambda conn: gate.extend(
            conn, workspace_id, by=HOUR, defaults=TtlDefaults(0, 0), actor="one", now=datetime.now(UTC)
        ),
    )
    for call in calls:
        with pytest.raises(Problem) as problem:
            async with engine.begin() as conn:
                await call(conn)
        assert problem.value.status == 404


async def test_a_limit_of_zero_admits_no_workspace(engine: AsyncEngine) -> None:
    workspace_id = await create_one(engine)
    with pytest.raises(RunningLimitExceeded):
        async with engine.begin() as conn:
            await gate.set_desired_state(
                conn, workspace_id, RUNNING, actor="one", limits=Limits(0, 5), now=datetime.now(UTC)
            )


async def test_updated_at_is_the_time_of_the_change(engine: AsyncEngine) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    workspace_id = await create_one(engine)
    async with engine.begin() as conn:
        deleted = await gate.delete(conn, workspace_id, actor="one", now=later + HOUR)
        assert deleted.deleted_at == deleted.updated_at == later + HOUR
        assert not await gate.purge(conn, workspace_id, later + HOUR, now=later + 2 * HOUR), "not removed yet"
        await conn.execute(update(workspaces).values(phase=Phase.DELETED.value))
        assert await gate.purge(conn, workspace_id, later + HOUR, now=later + 2 * HOUR)
        purged = await gate.lock_workspace(conn, workspace_id)
        assert purged.purged_at == purged.updated_at == later + 2 * HOUR
