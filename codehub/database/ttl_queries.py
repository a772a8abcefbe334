"""Workspaces whose TTL may have expired, read through indexes that are sorted by deadline."""

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import DateTime, Select, bindparam, or_, select, text, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.database.index_predicates import ARCHIVE_TTL, STANDBY_TTL, TtlPredicates
from codehub.database.row_mapping import COLUMNS, to_workspaces
from codehub.database.tables import workspaces
from codehub.domain.ttl import TtlDefaults
from codehub.domain.workspace import Workspace


async def candidates(conn: AsyncConnection, defaults: TtlDefaults, now: datetime) -> list[Workspace]:
    """Return at least every workspace for which `domain.ttl.expired` returns an expiry."""
    due = [*_due(STANDBY_TTL, defaults.standby, now), *_due(ARCHIVE_TTL, defaults.archive, now)]
    return to_workspaces((await conn.execute(union_all(*due))).mappings())


def _due(ttl: TtlPredicates, default: int, now: datetime) -> list[Select[Any]]:
    c = workspaces.c
    not_kept = or_(c.keep_until.is_(None), c.keep_until <= now)
    own_deadline = text(f"{ttl.own_deadline} <= :utc").bindparams(
        bindparam("utc", now.astimezone(UTC).replace(tzinfo=None), DateTime(), unique=True)
    )
    own = select(*COLUMNS).where(text(ttl.has_own), own_deadline, not_kept)
    if default == 0:
        return [own]
    since = c[ttl.since] <= now - timedelta(seconds=default)
    return [own, select(*COLUMNS).where(text(ttl.has_default), since, not_kept)]
