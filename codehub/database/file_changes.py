"""Timeline entries about files that tokens change: one for a token, a workspace and an hour."""

from datetime import datetime
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.database import gate, timeline
from codehub.domain.timeline_text import FILES_CHANGED

_EVENT: Final = "files-changed"


async def record_by_token(conn: AsyncConnection, workspace_id: str, *, actor: str, now: datetime) -> None:
    """Record that a token changes files. Only the first call of an hour locks the workspace."""
    if await timeline.find_recent(conn, workspace_id, now, actor=actor, event=_EVENT) is not None:
        return
    await gate.lock_workspace(conn, workspace_id)
    if await timeline.find_recent(conn, workspace_id, now, actor=actor, event=_EVENT) is None:
        await timeline.record(conn, workspace_id, now, actor=actor, event=_EVENT, message=FILES_CHANGED)
