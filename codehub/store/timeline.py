"""What happened to a workspace, when, why, and by whom."""

from datetime import datetime

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.domain.states import Operation
from codehub.store.tables import timeline


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
