"""Timelines of workspaces: events with their time, actor and message."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import RowMapping, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.database.tables import timeline, workspaces
from codehub.domain.states import Operation

KEPT: Final = 500
"""Newest entries of a workspace that are kept: more than are shown."""
TOGETHER: Final = timedelta(hours=1)
"""What an actor repeats within this time has one entry, with a count."""
REMOVE_OLDER: Final = """
    DELETE FROM timeline WHERE id = ANY(ARRAY(
        SELECT id FROM timeline WHERE workspace_id = :workspace_id AND id <= (
            SELECT id FROM timeline WHERE workspace_id = :workspace_id ORDER BY id DESC OFFSET :kept LIMIT 1
        ) ORDER BY id LIMIT :most
    ))
"""


async def record(
    conn: AsyncConnection,
    workspace_id: str,
    at: datetime,
    *,
    actor: str,
    event: str,
    message: str,
    operation: Operation = Operation.NONE,
) -> None:
    await conn.execute(
        insert(timeline).values(
            workspace_id=workspace_id,
            at=at,
            actor=actor,
            event=event,
            message=message,
            operation=None if operation is Operation.NONE else operation.value,
        )
    )


async def record_repeated(
    conn: AsyncConnection,
    workspace_id: str,
    at: datetime,
    *,
    actor: str,
    event: str,
    message: Callable[[int], str],
) -> None:
    """Record what a program may do often. The caller has locked the workspace.

    `message` makes the sentence about a number of times.
    """
    earlier = await find_recent(conn, workspace_id, at, actor=actor, event=event)
    if earlier is None:
        await record(conn, workspace_id, at, actor=actor, event=event, message=message(1))
        return
    count = earlier["count"] + 1
    values = {"count": count, "message": message(count)}
    await conn.execute(update(timeline).where(timeline.c.id == earlier["id"]).values(**values))


async def find_recent(
    conn: AsyncConnection, workspace_id: str, at: datetime, *, actor: str, event: str
) -> RowMapping | None:
    """Return id and count of the entry that what an actor repeats belongs to, or None."""
    c = timeline.c
    same = (c.workspace_id == workspace_id, c.actor == actor, c.event == event, c.at > at - TOGETHER)
    query = select(c.id, c["count"]).where(*same).order_by(c.id.desc()).limit(1)
    return (await conn.execute(query)).mappings().first()


async def find_long(conn: AsyncConnection) -> list[str]:
    """Return the workspaces with more timeline entries than are kept."""
    workspace_id = timeline.c.workspace_id
    query = select(workspace_id).group_by(workspace_id).having(func.count() > KEPT)
    return list(await conn.scalars(query))


async def find_purged(conn: AsyncConnection) -> list[str]:
    """Return the purged workspaces that still have timeline entries."""
    entries = select(timeline.c.id).where(timeline.c.workspace_id == workspaces.c.id).limit(1)
    query = select(workspaces.c.id).where(workspaces.c.purged_at.is_not(None), entries.exists())
    return list(await conn.scalars(query))


async def remove_older(conn: AsyncConnection, workspace_id: str, kept: int, most: int) -> int:
    """Remove at most `most` of the oldest entries beyond the `kept` newest; return how many."""
    values = {"workspace_id": workspace_id, "kept": kept, "most": most}
    return (await conn.execute(text(REMOVE_OLDER), values)).rowcount
