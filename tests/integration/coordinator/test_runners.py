"""TTL, GC and cancel with the runners of a real leader on real stores."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError
from sqlalchemy import func, insert, select, update

from codehub.bus.activity import KEY, ActivityLog
from codehub.coordinator import postgres_backend
from codehub.coordinator.gc_runner import GcRunner
from codehub.coordinator.leadership_loop import gc_rules_of
from codehub.coordinator.provider_interfaces import Providers
from codehub.coordinator.ttl_runner import TtlRules, TtlRunner
from codehub.database import gate, gateway_reports, leader_database, timeline
from codehub.database.leader_database import PostgresLeaderDatabase
from codehub.database.leadership import StaleLeader, campaign
from codehub.database.tables import archives, audit_log, workspaces
from codehub.database.tables import timeline as timeline_table
from codehub.domain.gateway_reports import GatewayRules
from codehub.domain.gc import GcRules
from codehub.domain.observation import JobState
from codehub.domain.states import DesiredState, Operation, Phase
from codehub.domain.ttl import TtlDefaults
from codehub.domain.workspace import Workspace
from codehub.host.file_lock import try_lock
from codehub.storage.archive.async_archive_store import ArchiveStore
from tests.integration.coordinator.conftest import CoordinatorStack
from tests.paused_jobs import pausing_tar
from tests.services import processes_of
from tests.trees import chown_to_home_owner, make_tree, tree_hash
from tests.waiting import eventually

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
RULES = GcRules(orphan_grace=2 * HOUR, retention=24 * HOUR)


def leader_database_of(stack: CoordinatorStack, epoch: int) -> PostgresLeaderDatabase:
    return stack.leader_database(epoch, RULES.retention)


async def expire(stack: CoordinatorStack, redis: Redis, epoch: int, now: datetime) -> None:
    """Run one TTL cycle at this time."""
    database = leader_database_of(stack, epoch)
    rules = TtlRules(TtlDefaults(600, 600), stack.settings.backends, GatewayRules(MINUTE, HOUR))
    await TtlRunner(database, ActivityLog(redis), stack.providers.archives, rules, lambda: now).tick()


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    client: Redis = Redis.from_url(redis_url)
    yield client
    await client.aclose()


async def running_without_a_leader(stack: CoordinatorStack) -> tuple[str, int]:
    """Return a RUNNING workspace, and the epoch of a term that the test itself holds."""
    await stack.start()
    workspace_id = await stack.create()
    await stack.until_phase(workspace_id, Phase.RUNNING)
    return workspace_id, await stack.take_leadership()


async def report(
    stack: CoordinatorStack,
    ago: timedelta = timedelta(0),
    *,
    name: str = "gateway-1",
    flushes: int = 0,
    ended: bool = False,
) -> int:
    """Report as a gateway that has flushed all activity until then."""
    registry = gateway_reports.GatewayRegistry(stack.settings.database_url)
    return await registry.report(name, flushes, ago, ended=ended)


async def has_desired_state(stack: CoordinatorStack, workspace_id: str, desired: DesiredState) -> bool:
    return (await stack.get(workspace_id)).desired_state is desired


async def known_gateways(stack: CoordinatorStack) -> set[str]:
    async with stack.engine.connect() as conn:
        return set(await gateway_reports.read_reports(conn))


def gc_runner(stack: CoordinatorStack, epoch: int, providers: Providers | None = None) -> GcRunner:
    return GcRunner(leader_database_of(stack, epoch), providers or stack.providers, RULES, epoch)


async def test_an_idle_workspace_is_stopped_and_then_archived(stack: CoordinatorStack) -> None:
    await stack.start(stack.with_settings(ttl_standby_seconds=2, ttl_archive_seconds=1))
    workspace_id = await stack.create()
    await stack.until_phase(workspace_id, Phase.ARCHIVED)
    entries = await stack.timeline(workspace_id)
    steps = ("finished: Started", "expired: Not used since", "finished: Stopped", "expired: Stopped since")
    assert [step for line in entries for step in steps if line.startswith(step)] == list(steps), entries


async def test_activity_and_keep_until_delay_a_ttl(stack: CoordinatorStack, redis: Redis) -> None:
    workspace_id, epoch = await running_without_a_leader(stack)
    later = datetime.now(UTC) + HOUR

    await ActivityLog(redis).flush({workspace_id: later.timestamp() - 10}, "gateway-1", 1)
    await expire(stack, redis, epoch, later)
    assert (await stack.get(workspace_id)).desired_state is DesiredState.RUNNING
    assert (await ActivityLog(redis).read()).uses == {}

    async with stack.engine.begin() as conn:
        kept = {"by": 3 * HOUR, "defaults": TtlDefaults(0, 0)}
        await gate.extend(conn, workspace_id, **kept, actor="u1", now=later)
    await expire(stack, redis, epoch, later + 2 * HOUR)
    assert (await stack.get(workspace_id)).desired_state is DesiredState.RUNNING
    await expire(stack, redis, epoch, later + 4 * HOUR)
    assert (await stack.get(workspace_id)).desired_state is DesiredState.STANDBY


async def test_unreadable_activity_is_unknown_not_idle(stack: CoordinatorStack) -> None:
    workspace_id, epoch = await running_without_a_leader(stack)
    nowhere = Redis(unix_socket_path=str(stack.settings.data_dir / "no-redis.sock"))
    await expire(stack, nowhere, epoch, datetime.now(UTC) + HOUR)
    assert (await stack.get(workspace_id)).desired_state is DesiredState.RUNNING


async def test_a_long_redis_outage_makes_no_workspace_idle(stack: CoordinatorStack, redis: Redis) -> None:
    """The empty set is read before the gateways have flushed the activity of the outage."""
    workspace_id, epoch = await running_without_a_leader(stack)
    later = datetime.now(UTC) + HOUR

    await report(stack, 20 * MINUTE)
    for minute in range(3):
        await expire(stack, redis, epoch, later + minute * MINUTE)
        assert (await stack.get(workspace_id)).desired_state is DesiredState.RUNNING

    await ActivityLog(redis).flush({workspace_id: later.timestamp()}, "gateway-1", 1)
    await report(stack, flushes=1)
    await expire(stack, redis, epoch, later + 3 * MINUTE)
    assert (await stack.get(workspace_id)).desired_state is DesiredState.RUNNING, "it was in use"
    await expire(stack, redis, epoch, later + 11 * MINUTE)
    assert (await stack.get(workspace_id)).desired_state is DesiredState.STANDBY


async def test_a_lost_gateway_delays_nothing_and_every_idle_time_restarts(
    stack: CoordinatorStack, redis: Redis
) -> None:
    workspace_id, epoch = await running_without_a_leader(stack)
    later = datetime.now(UTC) + HOUR

    await report(stack, 2 * HOUR)
    await expire(stack, redis, epoch, later)
    found = await stack.get(workspace_id)
    assert (found.desired_state, found.last_access_at) == (DesiredState.RUNNING, later)
    assert await known_gateways(stack) == set()
    await expire(stack, redis, epoch, later + 9 * MINUTE)
    assert (await stack.get(workspace_id)).desired_state is DesiredState.RUNNING
    await expire(stack, redis, epoch, later + 10 * MINUTE)
    assert (await stack.get(workspace_id)).desired_state is DesiredState.STANDBY


async def test_a_flush_that_redis_has_lost_makes_no_workspace_idle(
    stack: CoordinatorStack, redis: Redis
) -> None:
    """Redis accepted the use, the gateway reported it, and then Redis restarted empty."""
    workspace_id, epoch = await running_without_a_leader(stack)
    later = datetime.now(UTC) + HOUR
    activity = ActivityLog(redis)

    await activity.flush({workspace_id: later.timestamp()}, "gateway-1", 1)
    await report(stack, flushes=1)
    await redis.delete(KEY)
    await expire(stack, redis, epoch, later)
    assert await has_desired_state(stack, workspace_id, DesiredState.RUNNING)

    await activity.flush({workspace_id: later.timestamp()}, "gateway-1", 2)
    assert await report(stack, flushes=2) == 0, "no flush is carried yet, so the gateway keeps the use"
    await expire(stack, redis, epoch, later + MINUTE)
    assert await has_desired_state(stack, workspace_id, DesiredState.RUNNING)
    assert await report(stack, flushes=2) == 2
    await expire(stack, redis, epoch, later + 11 * MINUTE)
    assert await has_desired_state(stack, workspace_id, DesiredState.STANDBY)


async def test_a_stopped_gateway_beside_another_restarts_no_idle_time(
    stack: CoordinatorStack, redis: Redis
) -> None:
    workspace_id, epoch = await running_without_a_leader(stack)
    await ActivityLog(redis).flush({}, "gateway-1", 7)
    await report(stack, 2 * HOUR, flushes=7, ended=True)
    await report(stack, name="gateway-2")
    await expire(stack, redis, epoch, datetime.now(UTC) + HOUR)
    assert await has_desired_state(stack, workspace_id, DesiredState.STANDBY)
    assert await known_gateways(stack) == {"gateway-2"}
    assert (await ActivityLog(redis).read()).flushes == {}


async def test_a_last_flush_that_redis_has_lost_restarts_every_idle_time(
    stack: CoordinatorStack, redis: Redis
) -> None:
    workspace_id, epoch = await running_without_a_leader(stack)
    later = datetime.now(UTC) + HOUR
    await report(stack, flushes=7, ended=True)
    await report(stack, name="gateway-2")
    await expire(stack, redis, epoch, later)
    found = await stack.get(workspace_id)
    assert (found.desired_state, found.last_access_at) == (DesiredState.RUNNING, later)
    assert await known_gateways(stack) == {"gateway-2"}


async def test_no_workspace_is_stopped_without_a_gateway_until_the_last_one_is_lost(
    stack: CoordinatorStack, redis: Redis
) -> None:
    workspace_id, epoch = await running_without_a_leader(stack)
    later = datetime.now(UTC) + HOUR
    await ActivityLog(redis).flush({}, "gateway-1", 7)
    await report(stack, flushes=7, ended=True)
    await expire(stack, redis, epoch, later)
    assert await has_desired_state(stack, workspace_id, DesiredState.RUNNING)

    await report(stack, 2 * HOUR, flushes=7, ended=True)
    await expire(stack, redis, epoch, later)
    await expire(stack, redis, epoch, later + 9 * MINUTE)
    assert await has_desired_state(stack, workspace_id, DesiredState.RUNNING)
    await expire(stack, redis, epoch, later + 10 * MINUTE)
    assert await has_desired_state(stack, workspace_id, DesiredState.STANDBY)


async def test_idle_time_starts_after_a_start_that_took_longer_than_the_ttl(
    stack: CoordinatorStack, redis: Redis
) -> None:
    workspace_id, epoch = await running_without_a_leader(stack)
    ready = datetime.now(UTC)
    async with stack.engine.begin() as conn:
        slow = {"last_access_at": ready - 2 * HOUR, "phase_changed_at": ready}
        await conn.execute(update(workspaces).where(workspaces.c.id == workspace_id).values(**slow))
    await expire(stack, redis, epoch, ready + 9 * MINUTE)
    assert (await stack.get(workspace_id)).desired_state is DesiredState.RUNNING
    await expire(stack, redis, epoch, ready + 10 * MINUTE)
    assert (await stack.get(workspace_id)).desired_state is DesiredState.STANDBY


async def test_a_redis_that_hangs_times_out(stack: CoordinatorStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_backend, "REDIS_TIMEOUT", 0.2)
    term = await campaign(stack.settings.database_url, "test")
    assert term is not None
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = stack.with_settings(redis_url=f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        async with postgres_backend.PostgresBackend(settings).leader_services(term) as services:
            with pytest.raises(RedisError):
                await services.activity.read()
    await term.resign()


async def test_with_the_store_down_the_archive_ttl_waits_and_starts_still_work(
    stack: CoordinatorStack,
) -> None:
    store = stack.settings.data_dir / "archives"
    store.rename(store.with_name("away"))
    await stack.start(stack.with_settings(ttl_archive_seconds=1))
    workspace_id = await stack.create()
    await stack.until_phase(workspace_id, Phase.RUNNING)
    await stack.reach(workspace_id, DesiredState.STANDBY)
    epoch = await stack.take_leadership()
    redis = Redis.from_url(stack.settings.redis_url)
    later = datetime.now(UTC) + HOUR
    await expire(stack, redis, epoch, later)
    assert (await stack.get(workspace_id)).desired_state is DesiredState.STANDBY
    store.with_name("away").rename(store)
    await expire(stack, redis, epoch, later)
    assert (await stack.get(workspace_id)).desired_state is DesiredState.ARCHIVED
    await redis.aclose()


async def test_a_late_runner_changes_nothing(stack: CoordinatorStack, redis: Redis) -> None:
    workspace_id, epoch = await running_without_a_leader(stack)
    with pytest.raises(StaleLeader):
        await expire(stack, redis, epoch - 1, datetime.now(UTC) + HOUR)
    assert (await stack.get(workspace_id)).desired_state is DesiredState.RUNNING


async def test_gc_removes_a_replaced_archive_only_after_its_grace(stack: CoordinatorStack) -> None:
    await stack.start()
    workspace_id = await stack.create()
    await stack.until_phase(workspace_id, Phase.RUNNING)
    first = await stack.reach(workspace_id, DesiredState.ARCHIVED)
    await stack.reach(workspace_id, DesiredState.STANDBY)
    second = await stack.reach(workspace_id, DesiredState.ARCHIVED)
    epoch = await stack.take_leadership()
    runner = gc_runner(stack, epoch)
    now = datetime.now(UTC)
    assert await runner.tick(now) == 0
    assert await runner.tick(now + HOUR) == 0
    assert await runner.tick(now + 3 * HOUR) > 0
    left = {item.key for item in await stack.providers.archives.list()}
    assert left == {second.archive_key}
    async with stack.engine.connect() as conn:
        removed = await conn.scalar(
            select(archives.c.removed_at).where(archives.c.archive_key == first.archive_key)
        )
    assert removed is not None


async def test_gc_removes_audit_entries_after_their_retention_and_not_before(stack: CoordinatorStack) -> None:
    epoch = await stack.take_leadership()
    now, day = datetime.now(UTC), 24 * HOUR
    row = {"actor_name": "x", "actor_kind": "cli", "action": "user.deleted", "outcome": "success"}
    ages = (3 * day, 29 * day, 31 * day, 400 * day)
    async with stack.engine.begin() as conn:
        await conn.execute(insert(audit_log), [row | {"details": {}, "at": now - age} for age in ages])

    async def left() -> int:
        async with stack.engine.connect() as conn:
            return await conn.scalar(select(func.count()).select_from(audit_log)) or 0

    await GcRunner(leader_database_of(stack, epoch), stack.providers, RULES, epoch).tick(now)
    assert await left() == 4, "no retention is set: everything stays"
    rules = gc_rules_of(stack.with_settings(audit_retention_days=30))
    await GcRunner(leader_database_of(stack, epoch), stack.providers, rules, epoch).tick(now)
    assert await left() == 2


async def add_entries(stack: CoordinatorStack, workspace_id: str, count: int) -> None:
    now = datetime.now(UTC)
    entry = {"workspace_id": workspace_id, "at": now, "actor": "u1", "event": "requested"}
    async with stack.engine.begin() as conn:
        await conn.execute(insert(timeline_table), [entry | {"message": str(n)} for n in range(count)])


async def test_gc_keeps_the_newest_entries_of_a_timeline(
    stack: CoordinatorStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request adds an entry. Endless starts and stops must not fill the database."""
    long, short = [await stack.create(DesiredState.ARCHIVED) for _ in range(2)]
    await add_entries(stack, long, 9)
    monkeypatch.setattr(timeline, "KEPT", 4)
    monkeypatch.setattr(leader_database, "ROWS_AT_ONCE", 2)
    await gc_runner(stack, await stack.take_leadership()).tick(datetime.now(UTC))
    assert await stack.timeline(long) == [f"requested: {number}" for number in range(5, 9)]
    assert len(await stack.timeline(short)) == 1


async def test_gc_removes_the_timelines_of_purged_workspaces_and_no_others(
    stack: CoordinatorStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing shows them any longer. This includes workspaces that an earlier version purged."""
    purged, in_trash, living = [await stack.create(DesiredState.ARCHIVED) for _ in range(3)]
    for workspace_id in (purged, in_trash, living):
        await add_entries(stack, workspace_id, 5)
    now = datetime.now(UTC)
    async with stack.engine.begin() as conn:
        c = workspaces.c
        deleted = {"desired_state": DesiredState.DELETED.value, "deleted_at": now}
        await conn.execute(update(workspaces).where(c.id.in_([purged, in_trash])).values(**deleted))
        await conn.execute(update(workspaces).where(c.id == purged).values(purged_at=now))
    monkeypatch.setattr(leader_database, "ROWS_AT_ONCE", 2)
    await gc_runner(stack, await stack.take_leadership()).tick(now)
    assert [len(await stack.timeline(each)) for each in (purged, in_trash, living)] == [0, 6, 6]


async def test_a_slow_store_does_not_end_the_leadership_term(stack: CoordinatorStack) -> None:
    await stack.start()
    workspace_id = await stack.create(DesiredState.ARCHIVED)
    await stack.until_phase(workspace_id, Phase.ARCHIVED)
    await stack.stop()
    async with stack.engine.begin() as conn:
        await conn.execute(update(workspaces).values(archive_key=None, archive_op_id=None))
    term = await campaign(stack.settings.database_url, "test")
    assert term is not None

    class Slow(ArchiveStore):
        async def remove(self, key: str) -> None:
            await term.heartbeat()
            await super().remove(key)

    slow = Slow(
        stack.providers.storage_location.archive_url, stack.providers.storage_location.installation_id
    )
    runner = gc_runner(stack, term.epoch, replace(stack.providers, archives=slow))
    await runner.tick(datetime.now(UTC))
    assert await runner.tick(datetime.now(UTC) + 3 * HOUR) > 0
    await term.resign()


async def test_an_archive_whose_workspace_is_locked_does_not_stop_the_rest(stack: CoordinatorStack) -> None:
    await stack.start()
    locked, other = [await stack.create(DesiredState.ARCHIVED) for _ in range(2)]
    for workspace_id in (locked, other):
        await stack.until_phase(workspace_id, Phase.ARCHIVED)
    runner = gc_runner(stack, await stack.take_leadership())
    async with stack.engine.begin() as conn:
        await conn.execute(update(workspaces).values(archive_key=None, archive_op_id=None))
    now = datetime.now(UTC)
    await runner.tick(now)
    async with stack.engine.begin() as conn:
        await conn.execute(select(workspaces.c.id).where(workspaces.c.id == locked).with_for_update())
        assert await runner.tick(now + 3 * HOUR) > 0
        assert {item.workspace_id for item in await stack.providers.archives.list()} == {locked}
    assert await runner.tick(now + 3 * HOUR) > 0
    assert await stack.providers.archives.list() == []


async def test_the_trash_is_purged_after_its_retention_and_not_before(stack: CoordinatorStack) -> None:
    await stack.start()
    workspace_id = await stack.create()
    await stack.until_phase(workspace_id, Phase.RUNNING)
    async with stack.engine.begin() as conn:
        await gate.delete(conn, workspace_id, actor="u1", now=datetime.now(UTC))
    await stack.until_phase(workspace_id, Phase.DELETED)
    epoch = await stack.take_leadership()
    runner = gc_runner(stack, epoch)
    now = datetime.now(UTC)
    await runner.tick(now + 23 * HOUR)
    assert (await stack.get(workspace_id)).purged_at is None
    assert len(await stack.providers.archives.list()) == 1
    await runner.tick(now + 25 * HOUR)
    assert (await stack.get(workspace_id)).purged_at is not None
    await runner.tick(now + 28 * HOUR)
    assert await stack.providers.archives.list() == []


async def test_leftovers_beside_a_home_are_removed_after_their_grace(
    stack: CoordinatorStack,
) -> None:
    await stack.start()
    workspace_id = await stack.create(DesiredState.STANDBY)
    await stack.until_phase(workspace_id, Phase.STANDBY)
    epoch = await stack.take_leadership()
    home = await stack.home(workspace_id)
    (home / "work").write_text("precious")
    for name in (".staging-op0", ".deleted-op0", ".aside-op0"):
        (home.parent / name / "deep").mkdir(parents=True)
    runner = gc_runner(stack, epoch)
    now = datetime.now(UTC)

    async def left_after(hours: int) -> set[str]:
        await runner.tick(now + hours * HOUR)
        await stack.wait_for_jobs()
        return {path.name for path in home.parent.iterdir()} - {".lock", ".fence", ".marker", "home"}

    assert await left_after(0) == {".staging-op0", ".deleted-op0", ".aside-op0"}
    assert await left_after(1) == {".staging-op0", ".deleted-op0", ".aside-op0"}
    assert await left_after(3) == {".aside-op0"}
    assert await left_after(23) == {".aside-op0"}
    assert await left_after(25) == set()
    assert (home / "work").read_text() == "precious"


async def test_the_remains_of_a_job_whose_starter_was_killed_are_removed(stack: CoordinatorStack) -> None:
    """No leader starts such a job again: another job has cleared the home."""
    jobs = stack.settings.data_dir / "jobs"
    for name in ("w1-clear", "w2-clear", "w3-clear", "lost+found", "notes"):
        (jobs / name).mkdir(parents=True)
    (jobs / "w2-clear" / "lock").touch()
    (jobs / "notes" / "of-the-admin").touch()
    (jobs / "a-file").touch()
    starting = try_lock(jobs / "w3-clear" / "lock")
    assert starting is not None
    runner = gc_runner(stack, await stack.take_leadership())
    await runner.tick(datetime.now(UTC))
    assert {path.name for path in jobs.iterdir()} == {"w3-clear", "lost+found", "notes", "a-file"}
    os.close(starting)
    await runner.tick(datetime.now(UTC))
    assert {path.name for path in jobs.iterdir()} == {"lost+found", "notes", "a-file"}


async def test_homes_of_unknown_workspaces_are_kept_and_those_of_purged_ones_removed(
    stack: CoordinatorStack,
) -> None:
    await stack.start()
    workspace_id = await stack.create(DesiredState.STANDBY)
    await stack.until_phase(workspace_id, Phase.STANDBY)
    epoch = await stack.take_leadership()
    home = await stack.home(workspace_id)
    unknown = home.parents[1] / "unknown" / "home"
    unknown.mkdir(parents=True)
    async with stack.engine.begin() as conn:
        await conn.execute(
            update(workspaces).values(
                desired_state="DELETED", deleted_at=datetime.now(UTC), phase="DELETED", error_reason="Timeout"
            )
        )
    runner = gc_runner(stack, epoch)
    now = datetime.now(UTC)

    async def left_after(hours: int) -> tuple[bool, bool]:
        await runner.tick(now + hours * HOUR)
        await stack.wait_for_jobs()
        return home.exists(), unknown.exists()

    assert await left_after(0) == (True, True)
    assert await left_after(23) == (True, True)
    assert await left_after(25) == (True, False), "unknown for the retention; the other is only now purged"
    assert await left_after(28) == (False, False)


async def test_gc_leaves_everything_alone_when_the_store_is_not_ours(stack: CoordinatorStack) -> None:
    await stack.start()
    workspace_id = await stack.create(DesiredState.ARCHIVED)
    await stack.until_phase(workspace_id, Phase.ARCHIVED)
    epoch = await stack.take_leadership()
    async with stack.engine.begin() as conn:
        await conn.execute(update(workspaces).values(archive_key=None, archive_op_id=None))
    marker = stack.settings.data_dir / "archives" / ".codehub-installation"
    marker.write_text("another installation")
    runner = gc_runner(stack, epoch)
    for hours in (0, 3, 100):
        assert await runner.tick(datetime.now(UTC) + hours * HOUR) == 0
    assert list((stack.settings.data_dir / "archives" / workspace_id).rglob("home.tar.zst"))


async def full_home(stack: CoordinatorStack, workspace_id: str) -> tuple[Path, str]:
    """Return a home that takes a moment to move, and its hash."""
    await stack.until_phase(workspace_id, Phase.STANDBY)
    home = await stack.home(workspace_id)
    make_tree(home, seed=5)
    for number in range(32):
        (home / f"noise-{number}").write_bytes(os.urandom(1 << 20))
    chown_to_home_owner(home)
    return home, tree_hash(home)


async def stop_job_halfway(
    stack: CoordinatorStack, workspace_id: str, desired: DesiredState, reached: Callable[[], object]
) -> None:
    """Request a state, and stop its job in the middle of its work, where it stays until it is killed."""
    with pausing_tar():
        await stack.set_desired_state(workspace_id, desired)
        await eventually(lambda: asyncio.to_thread(reached), "the job to be halfway")
    (job_id,) = await stack.providers.jobs.list()
    fact = await stack.providers.jobs.status(job_id)
    assert fact is not None and fact.state is JobState.RUNNING


async def cancel(stack: CoordinatorStack, workspace_id: str) -> Workspace:
    """Cancel the operation; return the idle workspace after its job has ended."""
    async with stack.engine.begin() as conn:
        await gate.cancel(conn, workspace_id, actor="u1", now=datetime.now(UTC))
    idle = await stack.until(workspace_id, lambda w: w.operation is Operation.NONE)
    assert processes_of(stack.settings.data_dir / "jobs") == []
    assert (idle.request, idle.error_reason, idle.error_count) == (None, None, 0)
    assert any(line.startswith("cancelled: ") for line in await stack.timeline(workspace_id))
    return idle


async def test_a_cancelled_archive_leaves_the_home_where_it_is(stack: CoordinatorStack) -> None:
    await stack.start()
    workspace_id = await stack.create(DesiredState.STANDBY)
    home, before = await full_home(stack, workspace_id)
    store = stack.settings.data_dir / "archives" / workspace_id

    def begun() -> bool:
        return any(part.stat().st_size for part in store.glob("*/home.tar.zst#*"))

    await stop_job_halfway(stack, workspace_id, DesiredState.ARCHIVED, begun)
    idle = await cancel(stack, workspace_id)
    assert (idle.phase, idle.desired_state) == (Phase.STANDBY, DesiredState.STANDBY)
    assert idle.archive_key is None and not list(store.glob("*/.meta"))
    assert tree_hash(home) == before
    await stack.reach(workspace_id, DesiredState.ARCHIVED)


async def test_a_cancelled_restore_leaves_the_archive_where_it_is(stack: CoordinatorStack) -> None:
    await stack.start()
    workspace_id = await stack.create(DesiredState.STANDBY)
    home, before = await full_home(stack, workspace_id)
    archived = await stack.reach(workspace_id, DesiredState.ARCHIVED)
    await stop_job_halfway(
        stack, workspace_id, DesiredState.STANDBY, lambda: list(home.parent.glob(".staging-*/*"))[1:]
    )
    idle = await cancel(stack, workspace_id)
    assert (idle.phase, idle.desired_state) == (Phase.ARCHIVED, DesiredState.ARCHIVED)
    assert idle.archive_key == archived.archive_key
    assert not home.exists()
    await stack.reach(workspace_id, DesiredState.STANDBY)
    assert tree_hash(home) == before
