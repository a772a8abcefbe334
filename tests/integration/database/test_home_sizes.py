"""Sizes and notices of homes, and the notifications about them."""

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
    payloads: asyncio.Queue[str] = asyncio.Queue()
    engine = create_engine(database_url)
    async with engine.begin() as conn:
        await conn.execute(insert(users).values(id="one", username="one", password_hash="x", role="user"))
        workspace = await create(conn)
    listener = await asyncpg.connect(asyncpg_dsn(database_url))
    await listener.add_listener("ws_sse", lambda *arguments: payloads.put_nowait(arguments[-1]))
    async with engine.begin() as conn:
        await home_sizes.record_sizes(conn, {workspace.id: HomeSize(1, 1)}, NOW)
        await home_sizes.record_sizes(conn, {workspace.id: HomeSize(2, 1)}, NOW)
    async with engine.begin() as conn:
        await home_sizes.put_notice(conn, Notice(workspace.id, "Warning."), warned_at=NOW)
    async with asyncio.timeout(PATIENCE):
        payload = json.loads(await payloads.get())
    assert payload == {"id": workspace.id, "user_id": workspace.owner_id}
    assert payloads.empty()
    async with engine.begin() as conn:
        await home_sizes.clear_notices(conn, [workspace.id])
    async with asyncio.timeout(PATIENCE):
        await payloads.get()
    await listener.close()
    await engine.dispose()
