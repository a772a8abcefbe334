"""Leadership: one session-level advisory lock, and an epoch that fences every write of a leader."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta

import asyncpg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.database.advisory_locks import AdvisoryLock
from codehub.database.engine import CONNECTION_ERRORS, asyncpg_dsn

ANSWER_WITHIN = 5.0
"""Seconds in which the leader's own session must answer a heartbeat."""
LOCK_TIMEOUT = ANSWER_WITHIN / 5
"""Seconds that a write of the leader waits for a lock. Meanwhile it may hold the leadership row, for which
the heartbeat waits."""
HUNG_AFTER = timedelta(seconds=20)
"""A leader without a heartbeat for this long is hung; a standby ends its database session."""
ELECTED_WITHIN = 15.0
"""Seconds for one step of a campaign."""


END_EARLIER_TERMS = """
    SELECT pg_terminate_backend(pid) FROM pg_locks
    WHERE locktype = 'relation' AND relation = 'leadership'::regclass AND mode = 'RowShareLock'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND pid <> pg_backend_pid()
"""
"""Sessions that hold the fence. Only leaders do, and whoever has the advisory lock knows that theirs is over:
one that was stopped in the middle of a statement would keep every successor out."""


class StaleLeader(Exception):  # noqa: N818 - a fact, not a fault
    """Another coordinator leads now: this one may write nothing."""


@dataclass(frozen=True)
class PostgresTerm:
    """One time in office."""

    epoch: int
    connection: "asyncpg.Connection[asyncpg.Record]"

    async def heartbeat(self) -> None:
        """Prove that the lock is still held; raises StaleLeader or a connection error when it is not."""
        async with asyncio.timeout(ANSWER_WITHIN):
            beat = await self.connection.fetchval(
                "UPDATE leadership SET heartbeat_at = clock_timestamp() WHERE epoch = $1 RETURNING epoch",
                self.epoch,
            )
        if beat is None:
            raise StaleLeader

    async def catch_up(self, newest: int) -> None:
        """Let the next term begin after `newest`; this one ends with it."""
        async with asyncio.timeout(ANSWER_WITHIN):
            await self.connection.execute(
                "UPDATE leadership SET epoch = $2 WHERE epoch = $1", self.epoch, newest
            )

    async def resign(self) -> None:
        """End the session, and with it the lock."""
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                await self.connection.close()
        except CONNECTION_ERRORS:
            self.connection.terminate()


async def campaign(url: str, holder: str) -> PostgresTerm | None:
    """Take office if nobody holds it. A leader that hangs loses its session, for the next try."""
    connection = await asyncpg.connect(
        asyncpg_dsn(url), timeout=ANSWER_WITHIN, command_timeout=ELECTED_WITHIN
    )
    try:
        if await connection.fetchval("SELECT pg_try_advisory_lock($1)", AdvisoryLock.LEADER.value):
            await connection.execute(END_EARLIER_TERMS)
            epoch = await connection.fetchval(
                "UPDATE leadership SET epoch = epoch + 1, holder = $1, backend_pid = pg_backend_pid(), "
                "heartbeat_at = clock_timestamp() RETURNING epoch",
                holder,
            )
            return PostgresTerm(epoch, connection)
        await _evict_if_hung(connection)
    except BaseException:
        connection.terminate()
        raise
    await connection.close()
    return None


async def _evict_if_hung(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    """Only the session that holds the lock is ended, whatever pid the row remembers."""
    await connection.execute(
        "SELECT pg_terminate_backend(held.pid) FROM pg_locks held, leadership "
        "WHERE held.locktype = 'advisory' AND held.granted AND held.objsubid = 1 "
        "AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
        "AND ((held.classid::bigint << 32) | held.objid::bigint) = $1 "
        "AND leadership.heartbeat_at < clock_timestamp() - $2::interval",
        AdvisoryLock.LEADER.value,
        HUNG_AFTER,
    )


async def fence(conn: AsyncConnection, epoch: int) -> None:
    """Hold off any newer leader until this transaction ends, or raise StaleLeader if there is one.

    From here on, the transaction waits for a lock no longer than LOCK_TIMEOUT.
    """
    await conn.execute(text(f"SET LOCAL lock_timeout = {round(LOCK_TIMEOUT * 1000)}"))
    current = await conn.scalar(text("SELECT epoch FROM leadership FOR SHARE"))
    if current != epoch:
        raise StaleLeader
