"""Leader election with a session-level advisory lock, and an epoch that fences writes."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta

import asyncpg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.database.advisory_locks import AdvisoryLock
from codehub.database.engine import CONNECTION_ERRORS, asyncpg_dsn

ANSWER_TIMEOUT = 5.0
"""Seconds that a heartbeat of the leader's session may take."""
LOCK_TIMEOUT = ANSWER_TIMEOUT / 5
"""Seconds that a write of the leader waits for a lock. Meanwhile it may hold the leadership row,
which the heartbeat needs."""
HUNG_AFTER = timedelta(seconds=20)
"""A leader without a heartbeat for this long is hung. A standby ends its database session."""
CAMPAIGN_TIMEOUT = 15.0
"""Seconds for one statement of a campaign."""


END_EARLIER_TERMS = """
    SELECT pg_terminate_backend(pid) FROM pg_locks
    WHERE locktype = 'relation' AND relation = 'leadership'::regclass AND mode = 'RowShareLock'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND pid <> pg_backend_pid()
"""
"""Ends the sessions that hold the fence. They belong to earlier leaders, as the caller has the
advisory lock. One that was stopped in the middle of a statement would block every successor."""


class StaleLeader(Exception):  # noqa: N818 - a fact, not a fault
    """Rejection of a write, because another coordinator leads."""


@dataclass(frozen=True)
class PostgresTerm:
    """Leadership term, held by a database session."""

    epoch: int
    connection: "asyncpg.Connection[asyncpg.Record]"

    async def heartbeat(self) -> None:
        """Prove that the lock is still held; raise StaleLeader or a connection error if not."""
        async with asyncio.timeout(ANSWER_TIMEOUT):
            beat = await self.connection.fetchval(
                "UPDATE leadership SET heartbeat_at = clock_timestamp() WHERE epoch = $1 RETURNING epoch",
                self.epoch,
            )
        if beat is None:
            raise StaleLeader

    async def catch_up(self, newest: int) -> None:
        """Let the next term begin after the epoch `newest`; this term ends."""
        async with asyncio.timeout(ANSWER_TIMEOUT):
            await self.connection.execute(
                "UPDATE leadership SET epoch = $2 WHERE epoch = $1", self.epoch, newest
            )

    async def resign(self) -> None:
        """End the session, which releases the lock."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                await self.connection.close()
        except CONNECTION_ERRORS:
            self.connection.terminate()


async def campaign(url: str, holder: str) -> PostgresTerm | None:
    """Begin a term if no coordinator leads.

    If the leader is hung, end its session for the next try.
    """
    connection = await asyncpg.connect(
        asyncpg_dsn(url), timeout=ANSWER_TIMEOUT, command_timeout=CAMPAIGN_TIMEOUT
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
        await _end_hung_leader_session(connection)
    except BaseException:
        connection.terminate()
        raise
    await connection.close()
    return None


async def _end_hung_leader_session(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    """End the session of a hung leader: the one that holds the lock, whatever pid is in the row."""
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
    """Block newer leaders until this transaction ends, or raise StaleLeader if there is one.

    From here on, the transaction waits at most LOCK_TIMEOUT for a lock.
    """
    await conn.execute(text(f"SET LOCAL lock_timeout = {round(LOCK_TIMEOUT * 1000)}"))
    current = await conn.scalar(text("SELECT epoch FROM leadership FOR SHARE"))
    if current != epoch:
        raise StaleLeader
