"""Until when each gateway worker has handed over what it saw of the workspaces' use.

Times are the database's own, so that the clocks of several machines need not agree.
"""

from collections.abc import Collection
from datetime import timedelta

from sqlalchemy import delete, func, literal, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.store.tables import gateways


async def hear(conn: AsyncConnection, gateway_id: str, ago: timedelta) -> None:
    """Note that everything which this gateway saw until `ago` has been handed over."""
    heard_at = func.clock_timestamp() - literal(ago)
    new = insert(gateways).values(id=gateway_id, heard_at=heard_at)
    await conn.execute(
        new.on_conflict_do_update(index_elements=["id"], set_={"heard_at": new.excluded.heard_at})
    )


async def forget(conn: AsyncConnection, gateway_ids: Collection[str]) -> None:
    """No longer wait for these: they have ended, or nothing was heard of them for too long."""
    await conn.execute(delete(gateways).where(gateways.c.id.in_(gateway_ids)))


async def silences(conn: AsyncConnection) -> dict[str, timedelta]:
    """How long ago each gateway was heard."""
    c = gateways.c
    rows = await conn.execute(select(c.id, func.clock_timestamp() - c.heard_at))
    return {gateway_id: max(silence, timedelta(0)) for gateway_id, silence in rows}
