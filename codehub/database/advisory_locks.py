"""Every advisory lock of the installation, in one place so that no two can be the same."""

from enum import IntEnum, unique

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

_OURS = 0x636F646568756200
"""Advisory locks share one number space per database with everybody else's."""


@unique
class AdvisoryLock(IntEnum):
    LIMITS = _OURS + 1
    """Running workspaces are counted and admitted under it; taken before any row lock."""
    MIGRATION = _OURS + 2
    ADMINS = _OURS + 3
    """The last admin is found and kept under it."""
    LEADER = _OURS + 4
    """Held by the leading coordinator's session for its time in office."""
    FAILED_PASSWORDS = _OURS + 5
    """Failed passwords are counted and recorded under it; taken after any row lock."""
    STARTS = _OURS + 6
    """What parts record when they start is compared with the last entry under it."""


async def hold_lock(conn: AsyncConnection, lock: AdvisoryLock) -> None:
    """Wait for the lock, and keep it until the transaction ends."""
    await conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": lock.value})
