"""The runtime of each workspace, set when the workspace is created.

Only `codehub up` changes it, after it has ended every container of the runtime that it no longer
uses.
"""

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.database.tables import workspaces


async def count_by_runtime(engine: AsyncEngine) -> dict[str, int]:
    """Return how many workspaces each runtime has, including the trash."""
    c = workspaces.c
    counted = select(c.instance_backend, func.count().label("n")).where(c.purged_at.is_(None))
    async with engine.connect() as conn:
        rows = await conn.execute(counted.group_by(c.instance_backend))
        return {row.instance_backend: row.n for row in rows}


async def move_all(engine: AsyncEngine, before: str, after: str) -> None:
    """Move every workspace of one runtime to another. None of them may have a container left."""
    moved = update(workspaces).where(workspaces.c.instance_backend == before)
    async with engine.begin() as conn:
        await conn.execute(moved.values(instance_backend=after))
