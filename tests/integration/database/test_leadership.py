"""One coordinator leads at a time, and a stale leader writes nothing."""

from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.database.engine import asyncpg_dsn, create_engine, open_pool
from codehub.database.leader_database import PostgresLeaderDatabase
from codehub.database.leadership import LOCK_TIMEOUT, StaleLeader, campaign, fence
from codehub.domain.decision import Decision, TimelineEvent
from tests.integration.database.conftest import BACKENDS, create
from tests.waiting import eventually


async def test_one_leads_and_the_next_takes_over_when_its_session_ends(database_url: str) -> None:
    first = await campaign(database_url, "first")
    assert first is not None
    assert await campaign(database_url, "second") is None
    await first.heartbeat()
    await first.resign()
    second = await campaign(database_url, "second")
    assert second is not None
    assert second.epoch == first.epoch + 1
    await second.resign()


async def test_a_hung_leader_loses_its_session(database_url: str, engine: AsyncEngine) -> None:
    hung = await campaign(database_url, "hung")
    assert hung is not None
    async with engine.begin() as conn:
        await conn.execute(text("UPDATE leadership SET heartbeat_at = now() - interval '1 hour'"))
    assert await campaign(database_url, "next") is None
    term = await eventually(lambda: campaign(database_url, "next"), "the hung leader's session to end")
    assert term is not None
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await hung.heartbeat()
    await term.resign()


async def test_a_leader_that_hangs_inside_a_transaction_does_not_block_the_next_one(
    database_url: str,
) -> None:
    hung = await campaign(database_url, "hung")
    assert hung is not None
    engine = create_engine(database_url)
    async with engine.connect() as conn:
        await fence(conn, hung.epoch)
        await hung.resign()
        term = await campaign(database_url, "next")
        assert term is not None
        with pytest.raises(DBAPIError):
            await conn.execute(text("UPDATE workspaces SET name = 'stale'"))
        await conn.invalidate()
    await term.resign()
    await engine.dispose()


async def test_a_stale_leader_writes_nothing(database_url: str, engine: AsyncEngine) -> None:
    async with engine.begin() as conn:
        workspace = await create(conn)
    first = await campaign(database_url, "first")
    assert first is not None
    await first.resign()
    second = await campaign(database_url, "second")
    assert second is not None
    decision = Decision("stale", workspace, TimelineEvent.FAILED)
    async with open_pool(database_url, 1, LOCK_TIMEOUT) as pool:
        database = PostgresLeaderDatabase(pool, engine, first.epoch, timedelta(1), BACKENDS)
        with pytest.raises(StaleLeader):
            await database.save(workspace, decision, datetime.now(UTC))
    connection = await asyncpg.connect(asyncpg_dsn(database_url))
    assert await connection.fetchval("SELECT count(*) FROM timeline WHERE message = 'stale'") == 0
    await connection.close()
    await second.resign()
