"""Contract of a leader's database, for PostgreSQL and for the simulation."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.coordinator.leader_interfaces import LeaderDatabase
from codehub.database import gate, gateway_reports
from codehub.database.engine import open_pool
from codehub.database.gateway_reports import GatewayRegistry
from codehub.database.leader_database import PostgresLeaderDatabase, VersionConflict
from codehub.database.leadership import LOCK_TIMEOUT, StaleLeader, campaign
from codehub.database.tables import workspaces
from codehub.domain.decision import Decision, TimelineEvent
from codehub.domain.gc import StoredArchive
from codehub.domain.observation import ArchiveFact
from codehub.domain.states import DesiredState, Operation, Phase
from codehub.domain.ttl import Expiry, TtlDefaults
from codehub.domain.workspace import Workspace
from codehub.gateway.activity_reporter import WorkerRegistry
from tests.integration.database.conftest import BACKENDS, LIMITS, create
from tests.simulation.clock import VirtualLoop
from tests.simulation.database import Database, Gate
from tests.simulation.gateway import SimulatedGatewayRegistry
from tests.simulation.process import Faults, Process
from tests.simulation.simulated_backend import SimulatedLeaderDatabase
from tests.simulation.world import World
from tests.waiting import PATIENCE, eventually

RETENTION = timedelta(days=1)


@dataclass
class Backend:
    """One implementation, with the calls of other parts of CodeHub."""

    database: LeaderDatabase
    earlier: LeaderDatabase
    create: Callable[[], Awaitable[Workspace]]
    set_desired_state: Callable[[str, DesiredState], Awaitable[object]]
    delete: Callable[[str], Awaitable[object]]
    registry: WorkerRegistry

    async def get(self, workspace_id: str) -> Workspace:
        found = await self.database.find(workspace_id)
        assert found is not None
        return found


@pytest.fixture
async def postgres(engine: AsyncEngine, database_url: str) -> AsyncIterator[Backend]:
    terms = [await campaign(database_url, "test")]
    assert terms[0] is not None
    await terms[0].resign()
    terms.append(await campaign(database_url, "test"))
    earlier, term = terms
    assert earlier is not None
    assert term is not None

    async def create_one() -> Workspace:
        async with engine.begin() as conn:
            return await create(conn)

    async def set_desired_state(workspace_id: str, desired: DesiredState) -> object:
        async with engine.begin() as conn:
            return await gate.set_desired_state(
                conn, workspace_id, desired, actor="one", limits=LIMITS, now=datetime.now(UTC)
            )

    async def delete(workspace_id: str) -> object:
        async with engine.begin() as conn:
            return await gate.delete(conn, workspace_id, actor="one", now=datetime.now(UTC))

    async with open_pool(database_url, 2, LOCK_TIMEOUT) as pool:
        databases = [
            PostgresLeaderDatabase(pool, engine, item.epoch, RETENTION, BACKENDS) for item in (term, earlier)
        ]
        yield Backend(
            databases[0], databases[1], create_one, set_desired_state, delete, GatewayRegistry(database_url)
        )
    await term.resign()


@pytest.fixture
async def simulated() -> AsyncIterator[Backend]:
    loop = VirtualLoop()
    world = World(loop, timedelta(0))
    database = Database(world)
    database.leadership.epoch = 2
    simulated_gate = Gate(database)
    process = Process("test", world, random.Random(1), Faults())

    async def create_one() -> Workspace:
        number = len(database.rows)
        database.create(f"ws{number:03}", number, DesiredState.STANDBY)
        return database.rows[f"ws{number:03}"]

    async def set_desired_state(workspace_id: str, desired: DesiredState) -> object:
        return simulated_gate.set_desired_state(workspace_id, desired)

    async def delete(workspace_id: str) -> object:
        return simulated_gate.delete(workspace_id)

    databases = [SimulatedLeaderDatabase(process, database, epoch, RETENTION) for epoch in (2, 1)]
    yield Backend(
        databases[0],
        databases[1],
        create_one,
        set_desired_state,
        delete,
        SimulatedGatewayRegistry(process, database),
    )
    loop.close()


@pytest.fixture(params=["postgres", "simulated"])
def backend(request: pytest.FixtureRequest) -> Backend:
    found: Backend = request.getfixturevalue(request.param)
    return found


def claim(workspace: Workspace, op_id: str = "op1") -> Decision:
    after = replace(
        workspace, operation=Operation.PROVISIONING, op_id=op_id, op_started_at=workspace.created_at
    )
    return Decision("claimed", after, TimelineEvent.CLAIMED)


async def test_save_returns_the_row_that_it_stored(backend: Backend) -> None:
    workspace = await backend.create()
    saved = await backend.database.save(workspace, claim(workspace), datetime.now(UTC))
    assert saved.operation is Operation.PROVISIONING
    assert saved.version == workspace.version + 1
    read = await backend.get(workspace.id)
    assert replace(read, updated_at=saved.updated_at) == saved
    assert (await backend.database.versions())[workspace.id] == saved.version
    assert await backend.database.op_ids() == {"op1"}


async def test_a_claim_is_a_compare_and_swap(backend: Backend) -> None:
    workspace = await backend.create()
    await backend.database.save(workspace, claim(workspace), datetime.now(UTC))
    with pytest.raises(VersionConflict):
        await backend.database.save(workspace, claim(workspace, "op2"), datetime.now(UTC))
    assert (await backend.get(workspace.id)).op_id == "op1"


async def test_a_new_desired_state_conflicts_with_a_decision_and_an_effect(backend: Backend) -> None:
    workspace = await backend.create()
    await backend.set_desired_state(workspace.id, DesiredState.ARCHIVED)
    with pytest.raises(VersionConflict):
        await backend.database.save(workspace, claim(workspace), datetime.now(UTC))
    with pytest.raises(VersionConflict):
        await backend.database.save(workspace, Decision("an effect", workspace), datetime.now(UTC))
    assert (await backend.get(workspace.id)).operation is Operation.NONE


async def test_a_stale_leader_writes_nothing(backend: Backend) -> None:
    workspace = await backend.create()
    now, stale = datetime.now(UTC), backend.earlier
    expiry = Expiry(DesiredState.ARCHIVED, "late")
    for write in (
        stale.save(workspace, claim(workspace), now),
        stale.save(workspace, Decision("an effect", workspace), now),
        stale.advance_last_access({workspace.id: now}),
        stale.clear_upstreams([workspace.id]),
        stale.update_gateway_reports({"gateway": 1}, ["gateway"]),
        stale.reset_idle_time(now),
        stale.apply_expiry(workspace, expiry, now),
        stale.purge(now, now),
        stale.replace_orphans({"key": now}),
        stale.mark_archive_removed(
            StoredArchive("a/b/home.tar.zst", "a", "b", 1, complete=True), frozenset(), 0, now
        ),
    ):
        with pytest.raises(StaleLeader):
            await write
    assert await backend.get(workspace.id) == workspace


async def test_a_cancelled_workspace_keeps_its_state(backend: Backend) -> None:
    workspace = await backend.create()
    decision = Decision(
        "cancelled", workspace, TimelineEvent.CANCELLED, desired=DesiredState.PENDING, consume=True
    )
    saved = await backend.database.save(workspace, decision, datetime.now(UTC))
    assert (saved.desired_state, saved.request) == (DesiredState.PENDING, None)
    assert (await backend.get(workspace.id)).desired_state is DesiredState.PENDING


async def test_a_committed_archive_has_its_checksum(backend: Backend) -> None:
    workspace = await backend.create()
    key = f"{workspace.id}/op/home.tar.zst"
    fact = ArchiveFact(workspace.id, "op", key, "ab" * 32, 1, 2, 3)
    after = replace(workspace, archive_op_id="op", archive_key=key)
    await backend.database.save(
        workspace, Decision("archived", after, TimelineEvent.ARCHIVED, archive=fact), datetime.now(UTC)
    )
    assert await backend.database.archive_checksum(key) == "ab" * 32
    assert await backend.database.archive_keys() == {workspace.id: (key, False)}


async def test_only_named_workspaces_lose_their_upstream(backend: Backend) -> None:
    routed = []
    for number in range(3):
        workspace = await backend.create()
        after = replace(workspace, upstream=f"tcp:10.222.0.{number}:8080")
        routed.append(await backend.database.save(workspace, Decision("ready", after), datetime.now(UTC)))
    assert await backend.database.ids_with_upstream() == {workspace.id for workspace in routed}
    first, second, third = routed
    await backend.database.clear_upstreams([first.id, second.id, "nobody"])
    assert await backend.database.ids_with_upstream() == {third.id}
    assert (await backend.get(first.id)).version > first.version, "a decision on the old row conflicts"


async def test_a_ttl_yields_to_a_newer_desired_state(backend: Backend) -> None:
    workspace = await backend.create()
    await backend.set_desired_state(workspace.id, DesiredState.RUNNING)
    expiry = Expiry(DesiredState.ARCHIVED, "idle")
    assert not await backend.database.apply_expiry(workspace, expiry, datetime.now(UTC))
    seen = await backend.get(workspace.id)
    assert seen.desired_state is DesiredState.RUNNING
    assert await backend.database.apply_expiry(seen, expiry, datetime.now(UTC))
    assert (await backend.get(workspace.id)).desired_state is DesiredState.ARCHIVED
    assert await backend.database.ttl_candidates(TtlDefaults(60, 60), datetime.now(UTC)) == []


async def test_last_access_only_moves_forward(backend: Backend) -> None:
    workspace = await backend.create()
    later = workspace.last_access_at + timedelta(minutes=5)
    await backend.database.advance_last_access({workspace.id: later, "nobody": later})
    await backend.database.advance_last_access({workspace.id: later - timedelta(minutes=1)})
    assert (await backend.get(workspace.id)).last_access_at == later


async def test_the_first_gateway_resets_idle_times_in_small_transactions(
    engine: AsyncEngine, postgres: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A locked row delays its own batch, and the gateway registers after the last batch."""
    monkeypatch.setattr(gateway_reports, "ROWS_AT_ONCE", 2)
    monkeypatch.setattr(gateway_reports, "ANSWER_TIMEOUT", PATIENCE)
    ids = sorted([(await postgres.create()).id for _ in range(5)])
    async with engine.begin() as conn:
        await conn.execute(text("UPDATE workspaces SET phase = 'RUNNING', last_access_at = '2026-01-01Z'"))

    async def reset_ids() -> list[str]:
        async with engine.connect() as conn:
            query = "SELECT id FROM workspaces WHERE last_access_at > '2026-01-02Z' ORDER BY id"
            return list(await conn.scalars(text(query)))

    async with engine.begin() as conn:
        await conn.execute(text("SELECT FROM workspaces WHERE id = :id FOR UPDATE"), {"id": ids[-1]})
        registering = asyncio.create_task(postgres.registry.register("one"))
        await eventually(reset_ids, "the batches before the locked row", lambda found: found == ids[:4])
        assert await postgres.database.gateway_reports() == {}
    await registering
    assert await reset_ids() == ids
    assert (await postgres.database.gateway_reports()).keys() == {"one"}


async def test_a_report_returns_the_last_flush_in_the_database(backend: Backend) -> None:
    async def report(flushes: int, *, ended: bool = False) -> int:
        return await backend.registry.report("one", flushes, timedelta(0), ended=ended)

    await backend.registry.register("one")
    assert (await backend.database.gateway_reports())["one"].flushes == 0
    assert await report(1) == 0
    await backend.database.update_gateway_reports({"one": 1, "unknown": 5}, ())
    assert await report(2) == 1
    await backend.database.update_gateway_reports({"one": 0}, ())
    assert await report(3, ended=True) == 1, "flushes remain in the database"
    found = await backend.database.gateway_reports()
    assert found.keys() == {"one"} and (found["one"].flushes, found["one"].ended) == (3, True)
    await backend.database.update_gateway_reports({}, ["one"])
    assert await backend.database.gateway_reports() == {}
    assert await report(4) == 0, "a worker that counted as lost comes back"
    assert (await backend.database.gateway_reports())["one"].flushes == 4


async def test_workspaces_are_purged_after_their_grace_period(backend: Backend) -> None:
    workspace = await backend.create()
    await backend.delete(workspace.id)
    row = await backend.get(workspace.id)
    await backend.database.save(row, Decision("gone", replace(row, phase=Phase.DELETED)), datetime.now(UTC))
    deleted_at = (await backend.get(workspace.id)).deleted_at
    assert deleted_at is not None
    assert await backend.database.purge(deleted_at - timedelta(seconds=1), datetime.now(UTC)) == []
    assert await backend.database.purge(deleted_at, datetime.now(UTC)) == [workspace.id]
    assert workspace.id not in await backend.database.versions()
    assert (await backend.database.archive_holders(datetime.now(UTC)))[workspace.id].purged_at is not None


async def test_orphans_keep_the_time_when_they_were_first_seen(backend: Backend) -> None:
    first = datetime(2026, 1, 1, tzinfo=UTC)
    await backend.database.replace_orphans({"a": first, "b": first})
    await backend.database.replace_orphans({"a": first + timedelta(hours=1), "c": first})
    assert await backend.database.read_orphans() == {"a": first, "c": first}
    await backend.database.replace_orphans({})
    assert await backend.database.read_orphans() == {}


async def test_more_orphans_than_a_statement_has_parameters_are_recorded(backend: Backend) -> None:
    first = datetime(2026, 1, 1, tzinfo=UTC)
    many = {str(number): first for number in range(33_000)}
    await backend.database.replace_orphans(many)
    await backend.database.replace_orphans(many)
    assert len(await backend.database.read_orphans()) == len(many)


async def test_a_protected_archive_is_not_removed(backend: Backend) -> None:
    workspace = await backend.create()
    key = f"{workspace.id}/op/home.tar.zst"
    item, present = StoredArchive(key, workspace.id, "op", 1, complete=True), frozenset({key})
    after = replace(workspace, archive_op_id="op", archive_key=key)
    await backend.database.save(workspace, Decision("archived", after), datetime.now(UTC))
    assert await backend.database.mark_archive_removed(item, present, 0, datetime.now(UTC)) is not None
    old = StoredArchive(f"{workspace.id}/00/home.tar.zst", workspace.id, "00", 1, complete=True)
    assert await backend.database.mark_archive_removed(old, present, 0, datetime.now(UTC)) is None


async def test_the_timeline_has_the_message_of_a_decision(engine: AsyncEngine, postgres: Backend) -> None:
    workspace = await postgres.create()
    await postgres.database.save(workspace, claim(workspace), datetime.now(UTC))
    async with engine.connect() as conn:
        entry = (
            await conn.execute(
                text("SELECT actor, event, message, operation FROM timeline WHERE event = 'claimed'")
            )
        ).one()
    assert tuple(entry) == ("controller", "claimed", "claimed", "PROVISIONING")


async def test_what_is_kept_of_commands_follows_their_rows(postgres: Backend, engine: AsyncEngine) -> None:
    kept, archived = await postgres.create(), await postgres.create()
    old = "ended-long-ago"
    async with engine.begin() as conn:
        for exec_id, workspace, age in (("a", kept, 0), ("b", archived, 0), (old, kept, 90_000)):
            await conn.execute(
                text(
                    "INSERT INTO execs (id, workspace_id, actor_id, actor_name, by_token, command, cwd, tty, "
                    "state, created_at, seen_at, ended_at) VALUES (:id, :workspace, 'x', 'x', false, '[]', "
                    "'', false, 'exited', now(), now(), now() - :age * interval '1 second')"
                ),
                {"id": exec_id, "workspace": workspace.id, "age": age},
            )
        await conn.execute(
            text("UPDATE workspaces SET phase = 'ARCHIVED', desired_state = 'ARCHIVED' WHERE id = :id"),
            {"id": archived.id},
        )
    now, database = datetime.now(UTC), postgres.database
    assert await database.remove_expired_execs(now - RETENTION, now) == 1
    assert await database.wanted_execs(["a", "b", old, "unknown"], now) == {"a"}
    assert await database.without_home([kept.id, archived.id, "unknown"]) == {archived.id, "unknown"}
    for workspace_id, expected in ((kept.id, False), (archived.id, True), ("unknown", True)):
        async with database.locked_without_home(workspace_id) as has_no_home:
            assert has_no_home is expected
    with pytest.raises(StaleLeader):
        await postgres.earlier.remove_expired_execs(now, now)


async def test_nothing_starts_a_workspace_while_what_is_kept_of_it_is_set_aside(
    postgres: Backend, engine: AsyncEngine
) -> None:
    workspace = await postgres.create()
    async with engine.begin() as conn:
        archived = update(workspaces).where(workspaces.c.id == workspace.id)
        await conn.execute(archived.values(phase="ARCHIVED", desired_state="ARCHIVED"))

    async def start() -> None:
        async with engine.begin() as conn:
            await conn.execute(text("SET LOCAL lock_timeout = 1"))
            started = update(workspaces).where(workspaces.c.id == workspace.id)
            await conn.execute(started.values(desired_state="RUNNING"))

    async with postgres.database.locked_without_home(workspace.id) as has_no_home:
        assert has_no_home
        with pytest.raises(DBAPIError, match="lock timeout"):
            await start()
    await start()
    async with postgres.database.locked_without_home(workspace.id) as has_no_home:
        assert not has_no_home
    with pytest.raises(StaleLeader):
        async with postgres.earlier.locked_without_home(workspace.id):
            raise AssertionError("a former leader must not get here")
