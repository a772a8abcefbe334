"""The reports of gateway workers: until when the activity that each of them saw is in Redis (ADR 0018).

Times are the database's own, so that the clocks of several machines need not agree.
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
BEGIN: Final = "INSERT INTO gateways (id, heard_at) VALUES ($1, clock_timestamp())"
IS_ALONE: Final = "SELECT NOT EXISTS (SELECT FROM gateways WHERE id <> $1 AND NOT ended)"
REPORT: Final = """
    INSERT INTO gateways (id, heard_at, flushes, ended) VALUES ($1, clock_timestamp() - $2::interval, $3, $4)
    ON CONFLICT (id) DO UPDATE
    SET heard_at = excluded.heard_at, flushes = excluded.flushes, ended = excluded.ended
    RETURNING carried
"""
"""Inserts the row again for a worker that counted as lost and reports after all."""
CARRY: Final = """
    UPDATE gateways SET carried = greatest(gateways.carried, seen.flushes)
    FROM unnest(CAST(:ids AS text[]), CAST(:flushes AS bigint[])) AS seen (id, flushes)
    WHERE gateways.id = seen.id
"""


@dataclass(frozen=True)
class GatewayRegistry:
    """The table of gateway workers, as one of them writes it."""

    url: str

    async def begin(self, gateway_id: str) -> None:
        """Register a worker that will serve.

        Nobody could use a workspace while no worker ran: the first one restarts the clocks. It does so
        before it registers, as no workspace stands by until then.
        """
        async with self._connection() as connection:
            if await connection.fetchval(IS_ALONE, gateway_id):
                await _restart_clocks(connection)
            await connection.execute(BEGIN, gateway_id)

    async def report(self, gateway_id: str, flushes: int, ago: timedelta, *, ended: bool) -> int:
        """Record that this flush has everything that the worker saw until `ago`.

        Return the newest of its flushes that the coordinator has carried into the database.
        """
        async with self._connection() as connection:
            carried: int = await connection.fetchval(REPORT, gateway_id, ago, flushes, ended)
        return carried

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[asyncpg.Connection]:
        """Connect for one report: an idle worker needs no pool."""
        connection = await asyncpg.connect(
            asyncpg_dsn(self.url), timeout=ANSWER_TIMEOUT, command_timeout=ANSWER_TIMEOUT
        )
        try:
            yield connection
        finally:
            connection.terminate()


async def _restart_clocks(connection: asyncpg.Connection) -> None:
    """Restart them in batches of a transaction each: none holds many rows, or lasts for long."""
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
    """Record which flushes were carried into the database, and forget the workers that are gone."""
    await conn.execute(text(CARRY), {"ids": list(carried), "flushes": list(carried.values())})
    await conn.execute(delete(gateways).where(gateways.c.id.in_(gone)))
