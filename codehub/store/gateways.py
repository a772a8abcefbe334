"""Until when each gateway worker has handed over what it saw of the workspaces' use.

Times are the database's own, so that the clocks of several machines need not agree.
"""

from collections.abc import Collection
from datetime import timedelta
from typing import Final

import asyncpg
from sqlalchemy import delete, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.store.engine import asyncpg_dsn
from codehub.store.tables import gateways

ANSWER_WITHIN: Final = 5.0
HEAR: Final = """
    INSERT INTO gateways (id, heard_at) VALUES ($1, clock_timestamp() - $2::interval)
    ON CONFLICT (id) DO UPDATE SET heard_at = excluded.heard_at
"""
LEAVE: Final = "DELETE FROM gateways WHERE id = $1"


async def hear(url: str, gateway_id: str, ago: timedelta) -> None:
    """Note that everything which this gateway saw until `ago` has been handed over."""
    await _execute(url, HEAR, gateway_id, ago)


async def leave(url: str, gateway_id: str) -> None:
    """Note that this gateway has handed over everything, and has ended."""
    await _execute(url, LEAVE, gateway_id)


async def _execute(url: str, statement: str, *values: object) -> None:
    """Over a connection that is closed again: a worker that nobody visits needs no pool."""
    connection = await asyncpg.connect(asyncpg_dsn(url), timeout=ANSWER_WITHIN, command_timeout=ANSWER_WITHIN)
    try:
        await connection.execute(statement, *values)
    finally:
        connection.terminate()


async def forget(conn: AsyncConnection, gateway_ids: Collection[str]) -> None:
    """No longer wait for these: nothing was heard of them for too long."""
    await conn.execute(delete(gateways).where(gateways.c.id.in_(gateway_ids)))


async def silences(conn: AsyncConnection) -> dict[str, timedelta]:
    """How long ago each gateway was heard."""
    c = gateways.c
    rows = await conn.execute(select(c.id, func.clock_timestamp() - c.heard_at))
    return {gateway_id: max(silence, timedelta(0)) for gateway_id, silence in rows}
