"""Advisory locks, all in one enum so that no two share a number."""

from enum import IntEnum, unique

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

_PREFIX = 0x636F646568756200
"""Prefix: all applications that use a database share one number space for advisory locks."""


@unique
class AdvisoryLock(IntEnum):
    LIMITS = _PREFIX + 1
    """Serialises the counting and admission of running workspaces; taken before any row lock."""
    MIGRATION = _PREFIX + 2
    ADMINS = _PREFIX + 3
    """Serialises changes of admins, so that the last one cannot be removed."""
    LEADER = _PREFIX + 4
    """Held by the session of the leading coordinator for its term."""
    FAILED_PASSWORDS = _PREFIX + 5
    """Serialises the counting and recording of failed passwords; taken after any row lock."""
    STARTS = _PREFIX + 6
    """Serialises the audit entries that parts write when they start."""


async def hold_lock(conn: AsyncConnection, lock: AdvisoryLock) -> None:
    """Wait for the lock, and keep it until the transaction ends."""
    await conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": lock.value})
