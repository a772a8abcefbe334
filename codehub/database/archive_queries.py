"""Archives as the database records them."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.database.tables import archives


@dataclass(frozen=True)
class RecordedArchive:
    archive_op_id: str
    sha256: str
    bytes: int
    created_at: datetime
    removed: bool


async def find(conn: AsyncConnection, workspace_id: str, archive_op_id: str) -> RecordedArchive | None:
    """Return an archive of this workspace, also one that was removed."""
    c = archives.c
    found = await conn.execute(
        select(c.archive_op_id, c.sha256, c.bytes, c.created_at, c.removed_at.is_not(None).label("removed"))
        .where(c.workspace_id == workspace_id)
        .where(c.archive_op_id == archive_op_id)
    )
    row = found.mappings().one_or_none()
    return None if row is None else RecordedArchive(**row)
