"""What the disk watchdog writes down about homes, and who hears of it."""

import asyncio
import json
from datetime import UTC, datetime

import asyncpg
from sqlalchemy import insert

from codehub.database import home_sizes
from codehub.database.engine import asyncpg_dsn, create_engine
from codehub.database.tables import users
from codehub.domain.disk import HomeSize, Notice
from tests.integration.database.conftest import create
from tests.waiting import PATIENCE

NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def test_a_notice_is_announced_and_a_size_is_not(database_url: str) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    engine = create_engine(database_url)
    async with engine.begin() as conn:
        await conn.execute(insert(users).values(id="one", username="one", password_hash="x", role="user"))
        workspace = await create(conn)
    listener = await asyncpg.connect(asyncpg_dsn(database_url))
    await listener.add_listener("ws_sse", lambda *said: heard.put_nowait(said[-1]))
    async with engine.begin() as conn:
        await home_sizes.record_sizes(conn, {workspace.id: HomeSize(1, 1)}, NOW)
        await home_sizes.record_sizes(conn, {workspace.id: HomeSize(2, 1)}, NOW)
    async with engine.begin() as conn:
        await home_sizes.put_notice(conn, Notice(workspace.id, "Warning."), warned_at=NOW)
    async with asyncio.timeout(PATIENCE):
        said = json.loads(await heard.get())
    assert said == {"id": workspace.id, "user_id": workspace.owner_id}
    assert heard.empty()
    async with engine.begin() as conn:
        await home_sizes.clear_notices(conn, [workspace.id])
    async with asyncio.timeout(PATIENCE):
        await heard.get()
    await listener.close()
    await engine.dispose()
