"""Workspaces whose TTL may have expired, read through indexes that are sorted by deadline.

A workspace that a command or lease keeps awake stays a candidate. At most so many are read as run.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, DateTime, Select, bindparam, or_, select, text, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.database.index_predicates import (
    ARCHIVE_TTL,
    MAY_STAND_BY,
    STANDBY_TTL,
    WITHOUT_PERSON_SINCE,
    TtlPredicates,
)
from codehub.database.row_mapping import COLUMNS, to_workspaces
from codehub.database.tables import workspaces
from codehub.domain.ttl import TtlDefaults
from codehub.domain.workspace import Workspace


async def candidates(conn: AsyncConnection, defaults: TtlDefaults, now: datetime) -> list[Workspace]:
    """Return at least every workspace for which `domain.ttl.expired` returns an expiry."""
    due = [*_due(STANDBY_TTL, defaults.standby, now), *_due(ARCHIVE_TTL, defaults.archive, now)]
    if defaults.max_awake:
        due.append(_without_person(defaults, now))
    found = to_workspaces((await conn.execute(union_all(*due))).mappings())
    return list({workspace.id: workspace for workspace in found}.values())


def _without_person(defaults: TtlDefaults, now: datetime) -> Select[Any]:
    """Select what programs may no longer keep awake, however recently one has used it."""
    since = text(f"{WITHOUT_PERSON_SINCE} <= :without_person_since").bindparams(
        bindparam("without_person_since", now - timedelta(seconds=defaults.max_awake), DateTime(True))
    )
    return select(*COLUMNS).where(text(MAY_STAND_BY), since, _not_kept(now))


def _not_kept(now: datetime) -> ColumnElement[bool]:
    c = workspaces.c
    return or_(c.keep_until.is_(None), c.keep_until <= now)


def _due(ttl: TtlPredicates, default: int, now: datetime) -> list[Select[Any]]:
    c = workspaces.c
    not_kept = _not_kept(now)
    own_deadline = text(f"{ttl.own_deadline} <= :utc").bindparams(
        bindparam("utc", now.astimezone(UTC).replace(tzinfo=None), DateTime(), unique=True)
    )
    own = select(*COLUMNS).where(text(ttl.has_own), own_deadline, not_kept)
    if default == 0:
        return [own]
    since = c[ttl.since] <= now - timedelta(seconds=default)
    return [own, select(*COLUMNS).where(text(ttl.has_default), since, not_kept)]
