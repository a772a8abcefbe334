"""Audit log: an entry is written in the transaction of its action, and logged after the commit."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import structlog
from sqlalchemy import ColumnElement, Row, delete, func, insert, literal, select, text
from sqlalchemy.dialects.postgresql import INET
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from codehub.database.advisory_locks import AdvisoryLock, hold_lock
from codehub.database.tables import audit_log, counted_failures
from codehub.domain.audit import (
    FAILED_PASSWORDS,
    FAILURE_WINDOW,
    FAILURES_OF_ALL,
    FAILURES_OF_ONE_NETWORK,
    LOCKS_OF_ALL,
    LOCKS_OF_ONE_ACCOUNT,
    Action,
    Actor,
    AuditEntry,
    Detail,
    Target,
    network_of,
    window_start,
)

# LOG_LEVEL would filter the lines of `structlog.get_logger`.
_logger = structlog.wrap_logger(
    logging.getLogger(__name__), wrapper_class=structlog.make_filtering_bound_logger(logging.INFO)
)


class AuditedTransaction:
    """Transaction of one actor, with its audit entries."""

    def __init__(self, conn: AsyncConnection, actor: Actor, now: datetime) -> None:
        self.conn = conn
        self.actor = actor
        self.now = now
        self._written: list[dict[str, Any]] = []

    async def record(self, action: Action, target: Target | None = None, **details: Detail | None) -> None:
        """Insert an entry, without the details that are None."""
        given = {name: value for name, value in details.items() if value is not None}
        values = AuditEntry(self.now, self.actor, action, target, given).values()
        number = await self.conn.scalar(insert(audit_log).values(**values).returning(audit_log.c.id))
        self._written.append({"id": number, **values, "at": self.now.isoformat()})

    async def record_failed_password(
        self, action: Action, target: Target | None, **details: Detail | None
    ) -> None:
        """Insert an entry, or only count the failure if this hour has enough entries."""
        await hold_lock(self.conn, AdvisoryLock.FAILED_PASSWORDS)
        if await self._is_below_limits(action, target):
            await self.record(action, target, **details)
            return
        c = counted_failures.c
        await self.conn.execute(
            upsert(counted_failures)
            .values(window_at=window_start(self.now), failures=1)
            .on_conflict_do_update(index_elements=[c.window_at], set_={"failures": c.failures + 1})
        )

    async def _is_below_limits(self, action: Action, target: Target | None) -> bool:
        if action is Action.SESSION_LOCKED and target is not None:
            everyone, account = await self._count_failures(_IS_LOCK, audit_log.c.target_id == target.id)
            return everyone < LOCKS_OF_ALL and account < LOCKS_OF_ONE_ACCOUNT
        everyone, network = await self._count_failures(~_IS_LOCK, _is_of_network(self.actor.address))
        return everyone < FAILURES_OF_ALL and network < FAILURES_OF_ONE_NETWORK

    async def _count_failures(
        self, kind: ColumnElement[bool], subset: ColumnElement[bool]
    ) -> tuple[int, int]:
        """Return the number of entries of this kind in the window, and of those in the subset."""
        c = audit_log.c
        query = select(func.count(), func.count().filter(subset)).where(
            c.at >= window_start(self.now), c.action.in_([action.value for action in FAILED_PASSWORDS]), kind
        )
        everyone, some = (await self.conn.execute(query)).one()
        return everyone, some

    def log(self) -> None:
        for values in self._written:
            _logger.info("audit", **values)


_IS_LOCK: Final = (audit_log.c.action == Action.SESSION_LOCKED.value) & audit_log.c.target_id.is_not(None)


def _is_of_network(address: str) -> ColumnElement[bool]:
    network = network_of(address)
    if network is None:
        return audit_log.c.address.is_(None)
    return audit_log.c.address.op("<<=")(literal(network, INET))


@asynccontextmanager
async def transaction(engine: AsyncEngine, actor: Actor, now: datetime) -> AsyncIterator[AuditedTransaction]:
    """Begin a transaction, commit it with its entries, and then log them."""
    async with engine.begin() as conn:
        act = AuditedTransaction(conn, actor, now)
        yield act
    act.log()


async def record_if_changed(
    engine: AsyncEngine,
    actor: Actor,
    action: Action,
    target: Target,
    now: datetime,
    *,
    is_default: bool = False,
    **details: Detail,
) -> None:
    """Record a state of the installation, unless the last entry about it is equal.

    The default state gets no entry as long as there is none. Two parts that start at once write one
    entry.
    """
    wanted = AuditEntry(now, actor, action, target, details).values()["details"]
    async with transaction(engine, actor, now) as act:
        await hold_lock(act.conn, AdvisoryLock.STARTS)
        last = await _find_last_entry(act.conn, target)
        is_known = is_default if last is None else (last.action, last.details) == (action.value, wanted)
        if not is_known:
            await act.record(action, target, **details)


async def _find_last_entry(conn: AsyncConnection, target: Target) -> Row[Any, Any] | None:
    c = audit_log.c
    about = (c.target_kind == target.kind.value) & (c.target_name == target.name)
    query = select(c.action, c.details).where(about).order_by(c.id.desc()).limit(1)
    return (await conn.execute(query)).first()


@dataclass(frozen=True)
class AuditFilters:
    """Filters for reading entries; None matches any value."""

    before: int | None = None
    actor_id: str | None = None
    actor_name: str | None = None
    action: Action | None = None
    target_id: str | None = None
    target_name: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def conditions(self) -> list[ColumnElement[bool]]:
        c = audit_log.c
        equal = ("actor_id", "actor_name", "action", "target_id", "target_name")
        found = [c[name] == value for name in equal if (value := getattr(self, name)) is not None]
        if self.before is not None:
            found.append(c.id < self.before)
        if self.since is not None:
            found.append(c.at >= self.since)
        if self.until is not None:
            found.append(c.at < self.until)
        return found


async def read_entries(conn: AsyncConnection, filters: AuditFilters, limit: int) -> list[Row[Any]]:
    """Return the newest entries that match, newest first."""
    query = select(audit_log).where(*filters.conditions).order_by(audit_log.c.id.desc()).limit(limit)
    return list((await conn.execute(query)).all())


async def record_counted_failures(act: AuditedTransaction) -> None:
    """Replace the counters of past windows by one entry each."""
    c = counted_failures.c
    over = delete(counted_failures).where(c.window_at <= act.now - FAILURE_WINDOW)
    for row in (await act.conn.execute(over.returning(c.window_at, c.failures))).all():
        await act.record(
            Action.SESSION_FAILURES_COUNTED,
            failures=row.failures,
            since=row.window_at.isoformat(),
            until=(row.window_at + FAILURE_WINDOW).isoformat(),
        )


REMOVE_OLDER: Final = """
    DELETE FROM audit_log WHERE id = ANY(ARRAY(
        SELECT id FROM audit_log WHERE at < least(:before, now() - interval '1 day') ORDER BY at LIMIT :most
    ))
"""
"""The trigger protects the last day by the database's clock, which may differ from the leader's."""


async def remove_older(conn: AsyncConnection, epoch: int, before: datetime, most: int) -> int:
    """Remove the oldest entries before a time, as the leader of this epoch; return how many."""
    await conn.execute(
        text("SELECT set_config('codehub.audit_retention', :epoch, true)"), {"epoch": str(epoch)}
    )
    return (await conn.execute(text(REMOVE_OLDER), {"before": before, "most": most})).rowcount
