"""Archive storage of users: for workspaces, for the trash, and what GC has yet to remove."""

from collections.abc import Collection

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.database.tables import archives, workspaces


async def archive_bytes(
    conn: AsyncConnection, user_ids: Collection[str], *, among: Collection[str] | None = None
) -> dict[str, int]:
    """Return the bytes of all archives by user; a user without archives is left out.

    `among` leaves out the archives of all other workspaces, unless it is None.
    """
    w, a = workspaces.c, archives.c
    taken = (
        select(w.owner_id, func.sum(a.bytes).label("bytes"))
        .join(workspaces, w.id == a.workspace_id)
        .where(w.owner_id.in_(user_ids), a.removed_at.is_(None))
        .group_by(w.owner_id)
    )
    if among is not None:
        taken = taken.where(w.id.in_(among))
    return {row.owner_id: int(row.bytes) for row in await conn.execute(taken)}
