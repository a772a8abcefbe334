"""The leader's transactions are short: each holds the leadership row, for which its heartbeat waits."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.database import controller_writes
from codehub.database.controller_writes import PostgresLeaderDatabase, RowLocked
from codehub.database.engine import open_pool
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
class Office:
    engine: AsyncEngine
    term: PostgresTerm
    records: PostgresLeaderDatabase

    async def create(self, count: int, **values: object) -> list[str]:
        async with self.engine.begin() as conn:
            ids = [(await create(conn)).id for _ in range(count)]
            if values:
                await conn.execute(update(workspaces).values(**values))
        return ids

    async def get(self, workspace_id: str) -> Workspace:
        found = await self.records.find(workspace_id)
        assert found is not None
        return found

    async def transactions(self, table: str) -> list[int]:
        """Return the number of rows that each transaction has written last."""
        async with self.engine.connect() as conn:
            sizes = await conn.execute(text(f"SELECT count(*) FROM {table} GROUP BY xmin::text"))
            return sorted(sizes.scalars())


@pytest.fixture
async def office(
    engine: AsyncEngine, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Office]:
    """A leader that writes ten rows at once."""
    monkeypatch.setattr(controller_writes, "ROWS_AT_ONCE", 10)
    monkeypatch.setattr(controller_writes, "PURGED_AT_ONCE", 10)
    term = await campaign(database_url, "test")
    assert term is not None
    async with open_pool(database_url, 2, LOCK_TIMEOUT) as pool:
        yield Office(
            engine, term, PostgresLeaderDatabase(pool, engine, term.epoch, timedelta(days=7), BACKENDS)
        )
    await term.resign()


async def test_a_large_purge_is_many_transactions(office: Office) -> None:
    ids, purged = await office.create(25, **IN_TRASH), []
    while some := await office.records.purge(datetime.now(UTC), datetime.now(UTC)):
        purged += some
    assert sorted(purged) == sorted(ids)
    assert await office.transactions("workspaces") == [5, 10, 10]


async def test_many_routes_go_in_many_transactions(office: Office) -> None:
    ids = await office.create(25, upstream="tcp:10.222.0.1:8080")
    await office.records.clear_upstreams(ids)
    assert await office.records.ids_with_upstream() == set()
    assert await office.transactions("workspaces") == [5, 10, 10]


async def test_much_activity_is_carried_in_many_transactions(office: Office) -> None:
    ids = await office.create(25, last_access_at=LONG_AGO)
    await office.records.advance_last_access({workspace_id: datetime.now(UTC) for workspace_id in ids})
    assert await office.transactions("workspaces") == [5, 10, 10]


async def test_many_clocks_restart_in_many_transactions(office: Office) -> None:
    await office.create(25, phase="RUNNING", last_access_at=LONG_AGO)
    await office.records.reset_idle_time(datetime.now(UTC))
    assert await office.transactions("workspaces") == [5, 10, 10]


async def test_many_sizes_are_recorded_in_many_transactions(office: Office) -> None:
    sizes = {workspace_id: HomeSize(1, 1, complete=True) for workspace_id in await office.create(25)}
    await office.records.record_sizes(sizes, datetime.now(UTC))
    assert await office.transactions("home_sizes") == [5, 10, 10]


async def test_many_notices_are_cleared_in_many_transactions(office: Office) -> None:
    ids = await office.create(25)
    async with office.engine.begin() as conn:
        rows = [{"workspace_id": name, "notice": "too large", "warned_at": LONG_AGO} for name in ids]
        await conn.execute(insert(home_sizes), rows)
    await office.records.clear_notices(ids)
    async with office.engine.connect() as conn:
        assert set(await conn.scalars(select(home_sizes.c.notice))) == {None}
    assert await office.transactions("home_sizes") == [5, 10, 10]


async def test_many_orphans_are_remembered_and_forgotten_in_many_transactions(office: Office) -> None:
    """After an alarm, GC forgets all of them at once."""
    await office.records.replace_orphans({f"key{number:02}": LONG_AGO for number in range(25)})
    assert await office.transactions("gc_orphans") == [5, 10, 10]
    await _log_deletions(office.engine)
    await office.records.replace_orphans({"key00": LONG_AGO})
    assert await office.records.read_orphans() == {"key00": LONG_AGO}
    assert await office.transactions("deleted_orphans") == [4, 10, 10]


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


Write = Callable[[Office, Workspace], Awaitable[object]]
NOW = datetime.now(UTC)
WRITES: dict[str, Write] = {
    "save": lambda o, w: o.records.save(w, Decision("x", replace(w, upstream="tcp:10.222.0.1:80")), NOW),
    "advance_last_access": lambda o, w: o.records.advance_last_access({w.id: NOW + timedelta(days=1)}),
    "clear_upstreams": lambda o, w: o.records.clear_upstreams([w.id]),
    "reset_idle_time": lambda o, w: o.records.reset_idle_time(NOW + timedelta(days=1)),
    "purge": lambda o, w: o.records.purge(NOW, NOW),
    "mark_archive_removed": lambda o, w: o.records.mark_archive_removed(
        StoredArchive("k", w.id, "00", 1, complete=True), frozenset(), NOW
    ),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
async def test_a_row_that_is_locked_for_long_costs_a_write_and_not_the_office(
    office: Office, write: Write
) -> None:
    """The deletion of an account locks all rows of its user, for as long as it takes."""
    values = IN_TRASH if write is WRITES["purge"] else {"phase": "RUNNING", "upstream": "tcp:10.222.0.1:8080"}
    (workspace_id,) = await office.create(1, **values)
    workspace = await office.get(workspace_id)
    async with office.engine.begin() as other:
        await other.execute(select(workspaces.c.id).with_for_update())
        with pytest.raises(RowLocked):
            await write(office, workspace)
        await office.term.heartbeat()
    assert await office.get(workspace_id) == workspace
    await write(office, workspace)


async def test_a_ttl_skips_a_row_that_is_locked_for_long(office: Office) -> None:
    (workspace_id,) = await office.create(1)
    workspace, expiry = await office.get(workspace_id), Expiry(DesiredState.ARCHIVED, "idle")
    async with office.engine.begin() as other:
        await other.execute(select(workspaces.c.id).with_for_update())
        assert not await office.records.apply_expiry(workspace, expiry, NOW)
        await office.term.heartbeat()
    assert await office.records.apply_expiry(workspace, expiry, NOW)


async def test_a_save_that_waits_for_its_row_does_not_hold_up_the_heartbeat(
    office: Office, database_url: str
) -> None:
    """Many such saves, one after the other, would starve the heartbeat even if each were short."""
    (workspace_id,) = await office.create(1)
    workspace = await office.get(workspace_id)

    async def waits() -> object:
        async with office.engine.connect() as conn:
            return await conn.scalar(text(WAITING))

    async with open_pool(database_url, 1, lock_timeout=600.0) as pool:
        patient = PostgresLeaderDatabase(pool, office.engine, office.term.epoch, timedelta(days=7), BACKENDS)
        async with office.engine.begin() as other:
            await other.execute(select(workspaces.c.id).with_for_update())
            decision = Decision("x", replace(workspace, upstream="tcp:10.222.0.1:8080"))
            saving = asyncio.create_task(patient.save(workspace, decision, NOW))
            await eventually(waits, "the save to wait for the row")
            await office.term.heartbeat()
            assert not saving.done()
        assert (await saving).upstream == "tcp:10.222.0.1:8080"
