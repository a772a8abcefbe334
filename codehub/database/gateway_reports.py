"""Reports of gateway workers: the time up to which their activity is in Redis (ADR 0018).

All times are from the database's clock, so that the clocks of several machines need not agree.
"""

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import asyncpg
from sqlalchemy import delete, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.database.engine import asyncpg_dsn
from codehub.database.gate import RESET_IDLE_TIME
from codehub.database.tables import gateways
from codehub.domain.gateway_reports import GatewayReport

ANSWER_TIMEOUT: Final = 5.0
ROWS_AT_ONCE: Final = 1000
REGISTER: Final = "INSERT INTO gateways (id, heard_at) VALUES ($1, clock_timestamp())"
IS_ONLY_WORKER: Final = "SELECT NOT EXISTS (SELECT FROM gateways WHERE id <> $1 AND NOT ended)"
REPORT: Final = """
    INSERT INTO gateways (id, heard_at, flushes, ended) VALUES ($1, clock_timestamp() - $2::interval, $3, $4)
    ON CONFLICT (id) DO UPDATE
    SET heard_at = excluded.heard_at, flushes = excluded.flushes, ended = excluded.ended
    RETURNING carried
"""
"""Inserts the row again if the worker had counted as lost."""
RECORD_CARRIED: Final = """
    UPDATE gateways SET carried = greatest(gateways.carried, seen.flushes)
    FROM unnest(CAST(:ids AS text[]), CAST(:flushes AS bigint[])) AS seen (id, flushes)
    WHERE gateways.id = seen.id
"""


@dataclass(frozen=True)
class GatewayRegistry:
    """Writer of a gateway worker's row in `gateways`."""

    url: str

    async def register(self, gateway_id: str) -> None:
        """Register a worker that is about to serve.

        Workspaces could not be used while no worker ran, so the first one resets their idle time.
        It does so before it registers: until then no TTL fires.
        """
        async with self._connection() as connection:
            if await connection.fetchval(IS_ONLY_WORKER, gateway_id):
                await _reset_idle_time(connection)
            await connection.execute(REGISTER, gateway_id)

    async def report(self, gateway_id: str, flushes: int, ago: timedelta, *, ended: bool) -> int:
        """Record that this flush contains all activity that the worker saw until `ago`.

        Return the newest of its flushes that the coordinator has written to the database.
        """
        async with self._connection() as connection:
            carried: int = await connection.fetchval(REPORT, gateway_id, ago, flushes, ended)
        return carried

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[asyncpg.Connection]:
        """Connect for one report, as an idle worker needs no pool."""
        connection = await asyncpg.connect(
            asyncpg_dsn(self.url), timeout=ANSWER_TIMEOUT, command_timeout=ANSWER_TIMEOUT
        )
        try:
            yield connection
        finally:
            connection.terminate()


async def _reset_idle_time(connection: asyncpg.Connection) -> None:
    """Reset the idle time in short transactions of a few rows each."""
    now = await connection.fetchval("SELECT clock_timestamp()")
    while await connection.fetchval(RESET_IDLE_TIME, now, ROWS_AT_ONCE):
        pass


async def read_reports(conn: AsyncConnection) -> dict[str, GatewayReport]:
    """Return the last report of each worker."""
    c = gateways.c
    rows = await conn.execute(select(c.id, func.clock_timestamp() - c.heard_at, c.flushes, c.ended))
    return {
        gateway_id: GatewayReport(max(silence, timedelta(0)), flushes, ended)
        for gateway_id, silence, flushes, ended in rows
    }


async def update_reports(conn: AsyncConnection, carried: Mapping[str, int], gone: Collection[str]) -> None:
    """Record which flushes are in last_access_at, and remove the workers that are gone."""
    await conn.execute(text(RECORD_CARRIED), {"ids": list(carried), "flushes": list(carried.values())})
    await conn.execute(delete(gateways).where(gateways.c.id.in_(gone)))
