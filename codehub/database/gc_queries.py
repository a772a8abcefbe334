"""Queries of the GC runner, and its record of orphans."""

from collections.abc import Collection, Mapping
from datetime import datetime

from sqlalchemy import ColumnElement, and_, delete, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.database.index_predicates import WAIVED
from codehub.database.tables import archives, gc_orphans, workspaces
from codehub.domain.gc import ArchiveHolder
from codehub.domain.other_backends import Backends
from codehub.domain.states import Operation, Phase


def _uses(own: Backends) -> ColumnElement[bool]:
    c = workspaces.c
    return and_(c.instance_backend == own.instance, c.storage_backend == own.storage)


async def archive_holders(
    conn: AsyncConnection, now: datetime, own: Backends, workspace_id: str | None = None
) -> dict[str, ArchiveHolder]:
    """Return the archives that each workspace, or one of them, protects."""
    c, a = workspaces.c, archives.c
    is_kept = (a.kept_until > now).label("is_kept")
    archive_query = select(a.workspace_id, a.archive_key, a.removed_at, is_kept)
    archive_query = archive_query.where(or_(is_kept, a.removed_at.is_(None)))
    of_other_backend = (~_uses(own)).label("of_other_backend")
    query = select(
        c.id,
        c.archive_key,
        c.archive_op_id,
        c.phase,
        c.deleted_at,
        c.purged_at,
        of_other_backend,
        c.grace_waived_at,
        c.request["archive_op_id"].astext.label("requested"),
    )
    if workspace_id is not None:
        archive_query = archive_query.where(a.workspace_id == workspace_id)
        query = query.where(c.id == workspace_id).with_for_update()
    rows = (await conn.execute(query)).all()
    # After the rows: a recovery in between leaves its archive protected by one of the two, or by
    # both.
    kept: dict[str, set[str]] = {}
    recorded: dict[str, set[str]] = {}
    for row in await conn.execute(archive_query):
        if row.is_kept:
            kept.setdefault(row.workspace_id, set()).add(row.archive_key)
        if row.removed_at is None:
            recorded.setdefault(row.workspace_id, set()).add(row.archive_key)
    return {
        row.id: ArchiveHolder(
            archive_key=row.archive_key,
            archive_op_id=row.archive_op_id,
            phase=Phase(row.phase),
            deleted_at=row.deleted_at,
            purged_at=row.purged_at,
            kept=frozenset(kept.get(row.id, ())),
            recorded=frozenset(recorded.get(row.id, ())),
            requested=row.requested,
            of_other_backend=row.of_other_backend,
            grace_waived=row.grace_waived_at is not None,
        )
        for row in rows
    }


async def read_orphans(conn: AsyncConnection) -> dict[str, datetime]:
    rows = await conn.execute(select(gc_orphans.c.key, gc_orphans.c.first_seen_at))
    return {row.key: row.first_seen_at for row in rows}


async def delete_orphans(conn: AsyncConnection, keys: Collection[str]) -> None:
    await conn.execute(delete(gc_orphans).where(gc_orphans.c.key.in_(keys)))


async def insert_orphans(conn: AsyncConnection, seen: Mapping[str, datetime]) -> None:
    await conn.execute(
        insert(gc_orphans).on_conflict_do_nothing(),
        [{"key": key, "first_seen_at": at} for key, at in seen.items()],
    )


async def mark_removed(conn: AsyncConnection, key: str, now: datetime) -> None:
    await conn.execute(update(archives).where(archives.c.archive_key == key).values(removed_at=now))


async def purge_candidates(
    conn: AsyncConnection, deleted_before: datetime | None, own: Backends
) -> list[str]:
    """Return the workspaces to purge; with None, only those whose grace period was waived."""
    c = workspaces.c
    waived = text(WAIVED)
    over = waived if deleted_before is None else or_(c.deleted_at <= deleted_before, waived)
    rows = await conn.execute(
        select(c.id).where(
            over,
            c.purged_at.is_(None),
            c.phase == Phase.DELETED.value,
            c.operation == Operation.NONE.value,
            _uses(own),
        )
    )
    return [row.id for row in rows]


async def current_op_ids(conn: AsyncConnection) -> set[str]:
    rows = await conn.execute(select(workspaces.c.op_id).where(workspaces.c.op_id.is_not(None)))
    return {row.op_id for row in rows}
