"""Gate functions for leases: the only writer of `leases` (contract 3 of the specification).

Each one locks the workspace's row, and moves holds_changed_at, so that a TTL that was decided before
does not fire.
"""

from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import delete, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.database import gate
from codehub.database.holds import to_lease
from codehub.database.tables import leases
from codehub.domain import allowed_changes
from codehub.domain.awake import MAX_LEASES, Lease
from codehub.domain.problems import NotFound, TooManyRequests
from codehub.domain.timeline_text import lease_begun, lease_ended
from codehub.ulids import new_id

REMOVE_EXPIRED: Final = """
    WITH expired AS (
        SELECT id, workspace_id FROM leases WHERE expires_at <= :now ORDER BY expires_at LIMIT :most
    ),
    locked AS (
        SELECT id FROM workspaces WHERE id = ANY(ARRAY(SELECT workspace_id FROM expired))
        ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
    ),
    removed AS (
        DELETE FROM leases USING locked
        WHERE leases.workspace_id = locked.id AND expires_at <= :now
            AND leases.id = ANY(ARRAY(SELECT id FROM expired))
        RETURNING leases.workspace_id, leases.expires_at
    ),
    ends AS (
        SELECT workspace_id, max(expires_at) AS at FROM removed GROUP BY workspace_id
    ),
    recorded AS (
        UPDATE workspaces SET holds_changed_at = greatest(holds_changed_at, ends.at)
        FROM ends
        WHERE workspaces.id = ANY(ARRAY(SELECT workspace_id FROM ends)) AND workspaces.id = ends.workspace_id
    )
    SELECT count(*) FROM removed
"""
"""Removes expired leases and keeps the end of the last one, from which the idle time counts.

The rows of workspaces are locked first, as in the other functions, so that two cannot deadlock.
"""


async def create_lease(
    conn: AsyncConnection,
    workspace_id: str,
    *,
    actor_id: str,
    actor: str,
    reason: str,
    length: timedelta,
    now: datetime,
) -> Lease:
    """Keep a running workspace awake. A lease starts nothing, so others are rejected."""
    workspace = await gate.lock_workspace(conn, workspace_id)
    allowed_changes.check_may_hold(workspace)
    await _check_number(conn, workspace_id, now)
    lease = Lease(new_id(), workspace_id, actor_id, actor, reason, now, now + length)
    await conn.execute(insert(leases).values(**vars(lease)))
    message = lease_begun(lease)
    await gate.change_holds(conn, workspace, {}, now, actor=actor, event="lease", message=message)
    return lease


async def renew_lease(
    conn: AsyncConnection, workspace_id: str, lease_id: str, *, length: timedelta, now: datetime
) -> Lease:
    """Let a lease expire `length` from now. The timeline gets no entry: programs renew often."""
    workspace = await gate.lock_workspace(conn, workspace_id)
    allowed_changes.check_may_hold(workspace)
    lease = await _find(conn, workspace_id, lease_id, now)
    until = now + length
    await conn.execute(update(leases).where(leases.c.id == lease.id).values(expires_at=until))
    await gate.change_holds(conn, workspace, {}, now)
    return Lease(**{**vars(lease), "expires_at": until})


async def end_lease(
    conn: AsyncConnection, workspace_id: str, lease_id: str, *, actor: str, now: datetime
) -> None:
    """End a lease before it expires, whatever the workspace does."""
    workspace = await gate.lock_workspace(conn, workspace_id)
    allowed_changes.check_alive(workspace)
    lease = await _find(conn, workspace_id, lease_id, now)
    await conn.execute(delete(leases).where(leases.c.id == lease.id))
    message = lease_ended(lease)
    await gate.change_holds(conn, workspace, {}, now, actor=actor, event="lease", message=message)


async def list_leases(conn: AsyncConnection, workspace_id: str, now: datetime) -> list[Lease]:
    """Return the leases that have not expired, the one that expires first at the beginning."""
    c = leases.c
    query = select(leases).where(c.workspace_id == workspace_id, c.expires_at > now)
    rows = await conn.execute(query.order_by(c.expires_at, c.id).limit(MAX_LEASES))
    return [to_lease(row) for row in rows.mappings()]


async def remove_expired(conn: AsyncConnection, now: datetime, most: int) -> int:
    """Remove at most `most` expired leases; return how many. Leases of locked workspaces wait."""
    return await conn.scalar(text(REMOVE_EXPIRED), {"now": now, "most": most}) or 0


async def _check_number(conn: AsyncConnection, workspace_id: str, now: datetime) -> None:
    c = leases.c
    query = select(func.count()).where(c.workspace_id == workspace_id, c.expires_at > now)
    if (await conn.scalar(query) or 0) >= MAX_LEASES:
        raise TooManyRequests(
            f"This workspace has {MAX_LEASES} leases, the most that it may have. Renew one of them, or "
            "delete those that you no longer need."
        )


async def _find(conn: AsyncConnection, workspace_id: str, lease_id: str, now: datetime) -> Lease:
    c = leases.c
    query = select(leases).where(c.id == lease_id, c.workspace_id == workspace_id, c.expires_at > now)
    row = (await conn.execute(query)).mappings().one_or_none()
    if row is None:
        raise NotFound("There is no such lease: it has expired, or someone deleted it. Create another one.")
    return to_lease(row)
