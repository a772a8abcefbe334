"""Gate functions for CPU use that keeps workspaces awake: the only writer of `cpu_holds` (contract 3).

A hold that begins or ends moves holds_changed_at of the locked workspace, so that a TTL that was
decided before does not fire. A measurement only renews the row of the hold, which wakes nothing.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from sqlalchemy import delete, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.database import gate
from codehub.database.tables import cpu_holds
from codehub.domain import allowed_changes
from codehub.domain.awake import SEEN_WITHIN, CpuHold
from codehub.domain.problems import Problem

RENEW: Final = """
    UPDATE cpu_holds
    SET percent = renewed.percent, above_percent = renewed.above_percent, measured_at = renewed.measured_at
    FROM unnest(CAST(:ids AS text[]), CAST(:percents AS float[]), CAST(:limits AS int[]),
            CAST(:times AS timestamptz[])) AS renewed (id, percent, above_percent, measured_at)
    WHERE workspace_id = renewed.id
"""


async def begin(conn: AsyncConnection, workspace_id: str, hold: CpuHold) -> None:
    """Let its CPU use keep a workspace awake. One that does not run, or is about to stop, is not held."""
    workspace = await gate.lock_workspace(conn, workspace_id)
    try:
        allowed_changes.check_may_hold(workspace)
    except Problem:
        return
    statement = insert(cpu_holds).values(workspace_id=workspace_id, **vars(hold))
    await conn.execute(statement.on_conflict_do_update(index_elements=["workspace_id"], set_=vars(hold)))
    await gate.change_holds(conn, workspace, {}, hold.measured_at)


async def renew(conn: AsyncConnection, holds: Mapping[str, CpuHold]) -> None:
    """Record new measurements. `began_at` stays."""
    parameters = {
        "ids": list(holds),
        "percents": [hold.percent for hold in holds.values()],
        "limits": [hold.above_percent for hold in holds.values()],
        "times": [hold.measured_at for hold in holds.values()],
    }
    await conn.execute(text(RENEW), parameters)


async def end(conn: AsyncConnection, workspace_id: str, now: datetime) -> None:
    """End a hold. The idle time counts from now, or from its last measurement if that is long ago."""
    workspace = await gate.lock_workspace(conn, workspace_id)
    removed = delete(cpu_holds).where(cpu_holds.c.workspace_id == workspace_id)
    measured_at = await conn.scalar(removed.returning(cpu_holds.c.measured_at))
    if measured_at is None:
        return
    ended = min(now, measured_at + SEEN_WITHIN)
    await gate.change_holds(conn, workspace, {}, max(ended, workspace.holds_changed_at or ended))


async def not_measured(conn: AsyncConnection, now: datetime) -> list[str]:
    """Return the workspaces whose holds are over, because nothing has measured them."""
    over = select(cpu_holds.c.workspace_id).where(cpu_holds.c.measured_at <= now - SEEN_WITHIN)
    return list(await conn.scalars(over.order_by(cpu_holds.c.workspace_id)))
