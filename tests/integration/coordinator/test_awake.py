"""Commands and leases keep a workspace awake: the TTL runner on a real PostgreSQL and Redis."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis.asyncio import Redis
from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from codehub.bus.activity import ActivityLog
from codehub.coordinator.ttl_runner import TtlRules, TtlRunner
from codehub.database import gate, lease_gate
from codehub.database.engine import create_engine, open_pool
from codehub.database.leader_database import PostgresLeaderDatabase
from codehub.database.leadership import LOCK_TIMEOUT, campaign
from codehub.database.tables import execs, leases, users, workspaces
from codehub.domain.awake import Lease
from codehub.domain.gateway_reports import GatewayRules
from codehub.domain.other_backends import Backends
from codehub.domain.states import DesiredState, Phase
from codehub.domain.ttl import Expiry, TtlDefaults
from codehub.domain.user_limits import Limits
from codehub.domain.workspace import Workspace
from codehub.ulids import new_id

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
TTL = 10 * MINUTE
LIMIT = 72 * HOUR
BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)
BACKENDS = Backends("process", "local-dir")
DEFAULTS = TtlDefaults(int(TTL.total_seconds()), 0, int(LIMIT.total_seconds()))


class NoArchives:
    async def check(self) -> None:
        raise AssertionError("no workspace is archived here")


class Interrupted(PostgresLeaderDatabase):
    """Leader's database that lets something happen between the decision and the update."""

    between: Callable[[], Awaitable[object]] | None = None

    async def apply_expiry(self, seen: Workspace, expiry: Expiry, now: datetime) -> bool:
        if self.between is not None:
            await self.between()
        return await super().apply_expiry(seen, expiry, now)


@dataclass
class Stack:
    """A workspace that has been RUNNING and unused since BEGIN, and the TTL runner of a leader."""

    engine: AsyncEngine
    database: Interrupted
    redis: Redis
    workspace_id: str = ""

    async def tick(self, now: datetime) -> DesiredState:
        """Run one cycle of the TTL runner at this time; return the desired state after it."""
        rules = TtlRules(DEFAULTS, BACKENDS, GatewayRules(MINUTE, HOUR))
        activity: Any = ActivityLog(self.redis)
        archives: Any = NoArchives()
        await TtlRunner(self.database, activity, archives, rules, lambda: now).tick()
        return (await self.row()).desired_state

    async def row(self) -> Workspace:
        found = await self.database.find(self.workspace_id)
        assert found is not None
        return found

    async def change(self, **values: object) -> None:
        async with self.engine.begin() as conn:
            await conn.execute(update(workspaces).values(**values))

    async def start_command(self, at: datetime, timeout: timedelta | None = None) -> str:
        """Start a command for a program, as the gate does."""
        async with self.engine.begin() as conn:
            workspace = await gate.lock_workspace(conn, self.workspace_id)
            exec_id = new_id()
            await _insert_exec(conn, exec_id, self.workspace_id, at, timeout)
            await gate.change_holds(conn, workspace, gate.used(workspace, at, by_person=False), at)
        return exec_id

    async def see(self, exec_id: str, at: datetime) -> None:
        async with self.engine.begin() as conn:
            await conn.execute(update(execs).where(execs.c.id == exec_id).values(state="running", seen_at=at))

    async def end(self, exec_id: str, at: datetime) -> None:
        async with self.engine.begin() as conn:
            workspace = await gate.lock_workspace(conn, self.workspace_id)
            ended = update(execs).where(execs.c.id == exec_id)
            await conn.execute(ended.values(state="exited", ended_at=at, exit_code=0))
            await gate.change_holds(conn, workspace, {}, at)

    async def lease(self, at: datetime, length: timedelta) -> Lease:
        async with self.engine.begin() as conn:
            return await lease_gate.create_lease(
                conn, self.workspace_id, actor_id="u1", actor="ci", reason="a build", length=length, now=at
            )

    async def count_leases(self) -> int:
        async with self.engine.connect() as conn:
            return await conn.scalar(select(func.count()).select_from(leases)) or 0


async def _insert_exec(
    conn: AsyncConnection, exec_id: str, workspace_id: str, at: datetime, timeout: timedelta | None
) -> None:
    await conn.execute(
        insert(execs).values(
            id=exec_id,
            workspace_id=workspace_id,
            actor_id="u1",
            actor_name="ci",
            by_token=True,
            command=["make"],
            cwd="/home/coder",
            tty=False,
            timeout_seconds=None if timeout is None else timeout.total_seconds(),
            state="starting",
            created_at=at,
            seen_at=at,
        )
    )


@pytest.fixture
async def stack(database_url: str, redis_url: str) -> AsyncIterator[Stack]:
    async with AsyncExitStack() as exits:
        engine = create_engine(database_url)
        exits.push_async_callback(engine.dispose)
        redis: Redis = Redis.from_url(redis_url)
        exits.push_async_callback(redis.aclose)
        async with engine.begin() as conn:
            values = {"id": "u1", "username": "u1", "password_hash": "x", "role": "user"}
            await conn.execute(users.insert().values(**values))
            workspace = await gate.create(
                conn, owner_id="u1", name="a name", description="", image_ref="code-server",
                standby_ttl=None, archive_ttl=None, desired=DesiredState.RUNNING, actor="u1",
                limits=Limits(9, 9), backends=BACKENDS, now=BEGIN,
            )  # fmt: skip
        term = await campaign(database_url, "test")
        assert term is not None
        exits.push_async_callback(term.resign)
        pool = await exits.enter_async_context(open_pool(database_url, 2, LOCK_TIMEOUT))
        database = Interrupted(pool, engine, term.epoch, timedelta(days=7), BACKENDS)
        made = Stack(engine, database, redis, workspace.id)
        await made.change(phase=Phase.RUNNING.value, phase_changed_at=BEGIN)
        yield made


async def test_a_running_command_holds_and_the_ttl_counts_from_its_end(stack: Stack) -> None:
    build = await stack.start_command(BEGIN)
    for hours in range(1, 4):
        await stack.see(build, BEGIN + hours * HOUR)
        assert await stack.tick(BEGIN + hours * HOUR) is DesiredState.RUNNING
    end = BEGIN + 3 * HOUR + MINUTE
    await stack.end(build, end)
    assert await stack.tick(end + TTL - MINUTE) is DesiredState.RUNNING
    assert await stack.tick(end + TTL) is DesiredState.STANDBY


async def test_a_command_that_nothing_has_seen_for_five_minutes_does_not_hold(stack: Stack) -> None:
    build = await stack.start_command(BEGIN)
    await stack.see(build, BEGIN + HOUR)
    assert await stack.tick(BEGIN + HOUR + 5 * MINUTE + TTL - MINUTE) is DesiredState.RUNNING
    assert await stack.tick(BEGIN + HOUR + 5 * MINUTE + TTL) is DesiredState.STANDBY


async def test_a_command_holds_at_most_for_its_timeout(stack: Stack) -> None:
    build = await stack.start_command(BEGIN, timeout=30 * MINUTE)
    now = BEGIN + 30 * MINUTE + TTL
    await stack.see(build, now)
    assert await stack.tick(now - MINUTE) is DesiredState.RUNNING
    assert await stack.tick(now) is DesiredState.STANDBY


async def test_a_lease_holds_until_it_expires_and_is_then_removed(stack: Stack) -> None:
    await stack.lease(BEGIN + MINUTE, HOUR)
    end = BEGIN + MINUTE + HOUR
    assert await stack.tick(end - MINUTE) is DesiredState.RUNNING
    assert await stack.count_leases() == 1
    assert await stack.tick(end + TTL - MINUTE) is DesiredState.RUNNING
    assert await stack.count_leases() == 0
    assert (await stack.row()).holds_changed_at == end, "the idle time counts from its end"
    assert await stack.tick(end + TTL - MINUTE) is DesiredState.RUNNING
    assert await stack.tick(end + TTL) is DesiredState.STANDBY


async def test_a_command_that_starts_while_a_ttl_fires_wins(stack: Stack) -> None:
    late = BEGIN + HOUR
    stack.database.between = lambda: stack.start_command(late)
    assert await stack.tick(late) is DesiredState.RUNNING


async def test_a_command_that_starts_at_the_time_of_the_last_use_wins(stack: Stack) -> None:
    """Two uses may have the same time: holds_changed_at differs even then."""
    stack.database.between = lambda: stack.start_command(BEGIN)
    assert await stack.tick(BEGIN + HOUR) is DesiredState.RUNNING


async def test_a_lease_that_begins_or_is_renewed_while_a_ttl_fires_wins(stack: Stack) -> None:
    late = BEGIN + HOUR
    stack.database.between = lambda: stack.lease(late, HOUR)
    assert await stack.tick(late) is DesiredState.RUNNING
    assert await stack.count_leases() == 1
    stack.database.between = None
    assert await stack.tick(late + HOUR + TTL) is DesiredState.STANDBY


async def test_programs_keep_it_awake_for_at_most_the_limit_and_a_person_starts_it_again(
    stack: Stack,
) -> None:
    """A program starts commands without end: neither they nor their starts hold any longer."""
    end = BEGIN + LIMIT + TTL
    build = await stack.start_command(end - MINUTE)
    await stack.see(build, end)
    assert await stack.tick(end - MINUTE) is DesiredState.RUNNING
    await ActivityLog(stack.redis).flush({stack.workspace_id: end.timestamp()}, "gateway-1", 1)
    assert await stack.tick(end) is DesiredState.RUNNING, "a person uses it"
    row = await stack.row()
    assert (row.last_access_at, row.person_access_at) == (end, end)
    end += LIMIT + TTL
    await stack.see(build, end)
    await stack.change(last_access_at=end)
    assert await stack.tick(end - MINUTE) is DesiredState.RUNNING
    assert await stack.tick(end) is DesiredState.STANDBY


async def test_lost_activity_restarts_the_limit_too(stack: Stack) -> None:
    """The uses that are lost with a gateway may be those of a person."""
    now = BEGIN + LIMIT
    await stack.database.reset_idle_time(now)
    row = await stack.row()
    assert (row.last_access_at, row.person_access_at) == (now, now)


async def test_use_by_a_program_is_no_use_by_a_person(stack: Stack) -> None:
    await stack.start_command(BEGIN + HOUR)
    row = await stack.row()
    assert (row.last_access_at, row.person_access_at) == (BEGIN + HOUR, BEGIN)
    await stack.change(person_access_at=None)
    await stack.start_command(BEGIN + 2 * HOUR)
    row = await stack.row()
    assert row.person_access_at == BEGIN + HOUR, "what an older CodeHub recorded counts as a person's"
