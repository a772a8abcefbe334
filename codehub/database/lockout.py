"""Lockout after failed sign-ins, per account and network.

An attacker in another network cannot lock a user out.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Row, delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.database.tables import login_failures
from codehub.domain.audit import network_of
from codehub.domain.problems import TooManyRequests

FREE_FAILURES: Final = 4
FIRST_LOCK: Final = timedelta(seconds=30)
LONGEST_LOCK: Final = timedelta(minutes=30)
FORGOTTEN_AFTER: Final = timedelta(days=1)
MOST_ROWS: Final = 100_000
"""Accounts and networks that are remembered. Anyone can add one with each name they make up."""


@dataclass(frozen=True)
class FailedAttempts:
    """Number of failures of one account from one network, and the lock after the last one."""

    count: int
    lock: timedelta


def lock_after(failures: int) -> timedelta:
    """Return how long the lock after this many failures lasts. From the fifth on, it doubles."""
    if failures <= FREE_FAILURES:
        return timedelta(0)
    doublings = min(failures - FREE_FAILURES - 1, 10)
    return min(FIRST_LOCK * (1 << doublings), LONGEST_LOCK)


def lockout_key(username: str, address: str) -> str:
    """Return the key of one account and one network."""
    return f"{username}@{network_of(address) or 'unknown'}"


async def raise_if_locked(conn: AsyncConnection, key: str, now: datetime) -> None:
    row = await _find_failures(conn, key)
    if row is not None and row.locked_until is not None and row.locked_until > now:
        wait = max(1, round((row.locked_until - now).total_seconds()))
        raise TooManyRequests(f"Too many failed sign-ins. Try again in {wait} seconds.", retry_after=wait)


async def record_failure(conn: AsyncConnection, key: str, now: datetime) -> FailedAttempts:
    row = await _find_failures(conn, key, for_update=True)
    recent = row is not None and row.last_failed_at > now - FORGOTTEN_AFTER
    failures = row.failures + 1 if row is not None and recent else 1
    lock = lock_after(failures)
    values = {"failures": failures, "last_failed_at": now, "locked_until": now + lock if lock else None}
    await conn.execute(
        insert(login_failures)
        .values(key=key, **values)
        .on_conflict_do_update(index_elements=[login_failures.c.key], set_=values)
    )
    await conn.execute(delete(login_failures).where(login_failures.c.last_failed_at < now - FORGOTTEN_AFTER))
    return FailedAttempts(failures, lock)


async def forget_excess(conn: AsyncConnection, most: int = MOST_ROWS, at_once: int = 10_000) -> int:
    """Forget some rows beyond the bound, and return how many.

    Those with the fewest failures go first. So a flood of made-up names, which fail once each, does
    not end the lockout of an account.
    """
    c = login_failures.c
    excess = (await conn.scalar(select(func.count()).select_from(login_failures)) or 0) - most
    if excess <= 0:
        return 0
    least = select(c.key).order_by(c.failures, c.last_failed_at).limit(min(excess, at_once))
    return (await conn.execute(delete(login_failures).where(c.key.in_(least)))).rowcount


async def forget_failures(conn: AsyncConnection, key: str) -> None:
    await conn.execute(delete(login_failures).where(login_failures.c.key == key))


async def _find_failures(conn: AsyncConnection, key: str, *, for_update: bool = False) -> Row[Any] | None:
    query = select(login_failures).where(login_failures.c.key == key)
    return (await conn.execute(query.with_for_update() if for_update else query)).first()
