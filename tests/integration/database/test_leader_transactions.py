"""The leader's transactions are short: each holds the leadership row, which its heartbeat needs."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.database import leader_database
from codehub.database.engine import open_pool
from codehub.database.leader_database import PostgresLeaderDatabase, RowLocked
from codehub.database.leadership import LOCK_TIMEOUT, PostgresTerm, campaign
from codehub.database.tables import home_sizes, workspaces
from codehub.domain.decision import Decision
from codehub.domain.disk import HomeSize
from codehub.domain.gc import StoredArchive
from codehub.domain.states import DesiredState
from codehub.domain.ttl import Expiry
from codehub.domain.workspace import Workspace
from tests.integration.database.conftest import BACKENDS, create
from tests.waiting import eventually

WAITING = """
    SELECT count(*) FROM pg_stat_activity
    WHERE wait_event_type = 'Lock' AND datname = current_database()
"""
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
IN_TRASH = {"desired_state": "DELETED", "phase": "DELETED", "deleted_at": LONG_AGO}


@dataclass
class Leader:
    engine: AsyncEngine
    term: PostgresTerm
    database: PostgresLeaderDatabase

    async def create(self, count: int, **values: object) -> list[str]:
        async with self.engine.begin() as conn:
            ids = [(await create(conn)).id for _ in range(count)]
            if values:
                await conn.execute(update(workspaces).values(**values))
        return ids

    async def get(self, workspace_id: str) -> Workspace:
        found = await self.database.find(workspace_id)
        assert found is not None
        return found

    async def transactions(self, table: str) -> list[int]:
        """Return how many rows each transaction was the last to write."""
        async with self.engine.connect() as conn:
            sizes = await conn.execute(text(f"SELECT count(*) FROM {table} GROUP BY xmin::text"))
            return sorted(sizes.scalars())


@pytest.fixture
async def leader(
    engine: AsyncEngine, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Leader]:
    """A leader that writes at most ten rows per transaction."""
    monkeypatch.setattr(leader_database, "ROWS_AT_ONCE", 10)
    monkeypatch.setattr(leader_database, "PURGED_AT_ONCE", 10)
    term = await campaign(database_url, "test")
    assert term is not None
    async with open_pool(database_url, 2, LOCK_TIMEOUT) as pool:
        yield Leader(
            engine, term, PostgresLeaderDatabase(pool, engine, term.epoch, timedelta(days=7), BACKENDS)
        )
    await term.resign()


async def test_a_large_purge_is_many_transactions(leader: Leader) -> None:
    ids, purged = await leader.create(25, **IN_TRASH), []
    while some := await leader.database.purge(datetime.now(UTC), datetime.now(UTC)):
        purged += some
    assert sorted(purged) == sorted(ids)
    assert await leader.transactions("workspaces") == [5, 10, 10]


async def test_many_upstreams_are_cleared_in_many_transactions(leader: Leader) -> None:
    ids = await leader.create(25, upstream="tcp:10.222.0.1:8080")
    await leader.database.clear_upstreams(ids)
    assert await leader.database.ids_with_upstream() == set()
    assert await leader.transactions("workspaces") == [5, 10, 10]


async def test_much_activity_is_written_in_many_transactions(leader: Leader) -> None:
    ids = await leader.create(25, last_access_at=LONG_AGO)
    await leader.database.advance_last_access({workspace_id: datetime.now(UTC) for workspace_id in ids})
    assert await leader.transactions("workspaces") == [5, 10, 10]


async def test_many_idle_times_are_reset_in_many_transactions(leader: Leader) -> None:
    await leader.create(25, phase="RUNNING", last_access_at=LONG_AGO)
    await leader.database.reset_idle_time(datetime.now(UTC))
    assert await leader.transactions("workspaces") == [5, 10, 10]


async def test_many_sizes_are_recorded_in_many_transactions(leader: Leader) -> None:
    sizes = {workspace_id: HomeSize(1, 1, complete=True) for workspace_id in await leader.create(25)}
    await leader.database.record_sizes(sizes, datetime.now(UTC))
    assert await leader.transactions("home_sizes") == [5, 10, 10]


async def test_many_notices_are_cleared_in_many_transactions(leader: Leader) -> None:
    ids = await leader.create(25)
    async with leader.engine.begin() as conn:
        rows = [{"workspace_id": name, "notice": "too large", "warned_at": LONG_AGO} for name in ids]
        await conn.execute(insert(home_sizes), rows)
    await leader.database.clear_notices(ids)
    async with leader.engine.connect() as conn:
        assert set(await conn.scalars(select(home_sizes.c.notice))) == {None}
    assert await leader.transactions("home_sizes") == [5, 10, 10]


async def test_many_orphans_are_recorded_and_removed_in_many_transactions(leader: Leader) -> None:
    """After an alarm, GC removes all of them at once."""
    await leader.database.replace_orphans({f"key{number:02}": LONG_AGO for number in range(25)})
    assert await leader.transactions("gc_orphans") == [5, 10, 10]
    await _log_deletions(leader.engine)
    await leader.database.replace_orphans({"key00": LONG_AGO})
    assert await leader.database.read_orphans() == {"key00": LONG_AGO}
    assert await leader.transactions("deleted_orphans") == [4, 10, 10]


async def _log_deletions(engine: AsyncEngine) -> None:
    """Copy deleted orphans to a table, since a deleted row shows no transaction."""
    async with engine.begin() as conn:
        await conn.execute(text("CREATE TABLE deleted_orphans (key text)"))
        await conn.execute(
            text(
                "CREATE FUNCTION log_deletion() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN INSERT INTO deleted_orphans VALUES (old.key); RETURN old; END $$"
            )
        )
        await conn.execute(
            text(
                "CREATE TRIGGER log_deletion BEFORE DELETE ON gc_orphans "
                "FOR EACH ROW EXECUTE FUNCTION log_deletion()"
            )
        )


Write = Callable[[Leader, Workspace], Awaitable[object]]
NOW = datetime.now(UTC)
WRITES: dict[str, Write] = {
    "save": lambda leader, w: leader.database.save(
        w, Decision("x", replace(w, upstream="tcp:10.222.0.1:80")), NOW
    ),
    "advance_last_access": lambda leader, w: leader.database.advance_last_access(
        {w.id: NOW + timedelta(days=1)}
    ),
    "clear_upstreams": lambda leader, w: leader.database.clear_upstreams([w.id]),
    "reset_idle_time": lambda leader, w: leader.database.reset_idle_time(NOW + timedelta(days=1)),
    "purge": lambda leader, w: leader.database.purge(NOW, NOW),
    "mark_archive_removed": lambda leader, w: leader.database.mark_archive_removed(
        StoredArchive("k", w.id, "00", 1, complete=True), frozenset(), 0, NOW
    ),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
async def test_a_locked_row_fails_a_write_and_not_the_term(leader: Leader, write: Write) -> None:
    """The deletion of an account locks all workspaces of the user while it runs."""
    values = IN_TRASH if write is WRITES["purge"] else {"phase": "RUNNING", "upstream": "tcp:10.222.0.1:8080"}
    (workspace_id,) = await leader.create(1, **values)
    workspace = await leader.get(workspace_id)
    async with leader.engine.begin() as other:
        await other.execute(select(workspaces.c.id).with_for_update())
        with pytest.raises(RowLocked):
            await write(leader, workspace)
        await leader.term.heartbeat()
    assert await leader.get(workspace_id) == workspace
    await write(leader, workspace)


async def test_a_ttl_skips_a_locked_row(leader: Leader) -> None:
    (workspace_id,) = await leader.create(1)
    workspace, expiry = await leader.get(workspace_id), Expiry(DesiredState.ARCHIVED, "idle")
    async with leader.engine.begin() as other:
        await other.execute(select(workspaces.c.id).with_for_update())
        assert not await leader.database.apply_expiry(workspace, expiry, NOW)
        await leader.term.heartbeat()
    assert await leader.database.apply_expiry(workspace, expiry, NOW)


async def test_a_save_that_waits_for_its_row_does_not_delay_the_heartbeat(
    leader: Leader, database_url: str
) -> None:
    """Many such saves, one after the other, would starve the heartbeat even if each were short."""
    (workspace_id,) = await leader.create(1)
    workspace = await leader.get(workspace_id)

    async def is_waiting() -> object:
        async with leader.engine.connect() as conn:
            return await conn.scalar(text(WAITING))

    async with open_pool(database_url, 1, lock_timeout=600.0) as pool:
        patient = PostgresLeaderDatabase(pool, leader.engine, leader.term.epoch, timedelta(days=7), BACKENDS)
        async with leader.engine.begin() as other:
            await other.execute(select(workspaces.c.id).with_for_update())
            decision = Decision("x", replace(workspace, upstream="tcp:10.222.0.1:8080"))
            saving = asyncio.create_task(patient.save(workspace, decision, NOW))
            await eventually(is_waiting, "the save to wait for the row")
            await leader.term.heartbeat()
            assert not saving.done()
        assert (await saving).upstream == "tcp:10.222.0.1:8080"
