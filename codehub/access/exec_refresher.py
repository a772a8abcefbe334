"""Refresh of the rows of living commands from what the runtime has recorded."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.clock import utc_now
from codehub.database import exec_gate, exec_queries
from codehub.domain.execs import Exec, ExecObservation, ExecState, refreshed
from codehub.domain.problems import Problem
from codehub.runtimes.command_runtime import CommandRuntime, CommandStatus

logger = structlog.get_logger(__name__)

REFRESH_SECONDS: Final = 30.0
SEEN_EVERY: Final = timedelta(seconds=60)
"""How often a row is written while nothing but its output changes."""
AT_ONCE: Final = 16


async def refresh_row(engine: AsyncEngine, commands: CommandRuntime, row: Exec) -> Exec:
    """Return the row as the runtime has recorded it, and save it if it has changed."""
    if not row.state.is_alive:
        return row
    now = utc_now()
    found = _observation(await commands.find_command(row.workspace_id, row.id))
    is_unreadable = found is None and await commands.is_unreadable(row.workspace_id, row.id)
    changes: Any = refreshed(row, found, now, is_unreadable=is_unreadable)
    if not changes:
        return row
    fresh = replace(row, **changes)
    if not _must_save(row, fresh, now):
        return fresh
    async with engine.begin() as conn:
        saved = await exec_gate.save_refreshed(conn, row, changes, now=now)
        current = None if saved else await exec_queries.find(conn, row.workspace_id, row.id)
    return current or fresh


def _must_save(row: Exec, fresh: Exec, now: datetime) -> bool:
    if (fresh.state, fresh.missing_since) != (row.state, row.missing_since):
        return True
    return fresh != row and now - row.seen_at >= SEEN_EVERY


def _observation(status: CommandStatus | None) -> ExecObservation | None:
    if status is None:
        return None
    return ExecObservation(
        ExecState(status.state.value),
        _time(status.started_at),
        None if status.ended_at is None else _time(status.ended_at),
        status.exit_code,
        status.reason,
        status.stdout_bytes,
        status.stderr_bytes,
        status.dropped_bytes,
    )


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


class ExecRefresher:
    """Periodic refresh of all living commands of this runtime. Several parts may do so."""

    def __init__(self, engine: AsyncEngine, commands: CommandRuntime, instance_backend: str) -> None:
        self._engine = engine
        self._commands = commands
        self._backend = instance_backend
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        """Refresh until cancelled."""
        while True:
            try:
                await self.tick()
            except Exception:
                logger.exception("commands could not be refreshed")
            await asyncio.sleep(REFRESH_SECONDS)

    async def tick(self) -> None:
        async with self._engine.connect() as conn:
            rows = await exec_queries.alive(conn, self._backend)
        await asyncio.gather(*(self._refresh(row) for row in rows))

    async def _refresh(self, row: Exec) -> None:
        """Refresh one row. A trouble with one does not stop the others."""
        async with self._slots:
            try:
                await refresh_row(self._engine, self._commands, row)
            except (Problem, SQLAlchemyError, OSError) as error:
                logger.warning("a command could not be refreshed", exec_id=row.id, error=str(error))
