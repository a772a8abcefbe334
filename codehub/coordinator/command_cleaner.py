"""Removal of what is kept of commands whose time is over, or that were forgotten (ADR 0034)."""

from collections.abc import Mapping
from datetime import datetime, timedelta

import structlog

from codehub.coordinator.leader_interfaces import LeaderDatabase
from codehub.database.leader_database import RowLocked
from codehub.runtimes.command_runtime import CommandForgotten, CommandRuntime, ControlFailed, ExecState

logger = structlog.get_logger(__name__)

INTERVAL = 60.0


class CommandCleaner:
    """Cleaner that keeps the records of exactly those commands whose rows say so."""

    def __init__(self, database: LeaderDatabase, commands: CommandRuntime, retention: timedelta) -> None:
        self._database = database
        self._commands = commands
        self._retention = retention

    async def tick(self, now: datetime) -> None:
        """Run one cycle. The records are listed before the rows are read: a row comes first."""
        while await self._database.remove_expired_execs(now - self._retention, now):
            pass
        kept = await self._commands.kept_commands()
        wanted = await self._database.wanted_execs([name for names in kept.values() for name in names], now)
        for workspace_id, exec_id in _surplus(kept, wanted):
            await self._remove(workspace_id, exec_id)
        for workspace_id in await self._database.without_home(list(kept)):
            await self._forget(workspace_id)
        await self._commands.remove_set_aside()

    async def _forget(self, workspace_id: str) -> None:
        try:
            await self._set_aside(workspace_id)
        except (OSError, RowLocked) as error:
            logger.warning("what is kept of a workspace cannot be removed", id=workspace_id, error=str(error))

    async def _set_aside(self, workspace_id: str) -> None:
        """Set aside what is kept of a workspace that still has no home, while nothing can start it."""
        aside: str | None = None
        try:
            async with self._database.locked_without_home(workspace_id) as has_no_home:
                if has_no_home:
                    aside = self._commands.set_aside(workspace_id)
        except BaseException:
            if aside is not None:  # the lock may have ended earlier
                self._commands.put_back(workspace_id, aside)
            raise

    async def _remove(self, workspace_id: str, exec_id: str) -> None:
        """Remove one record. A command that still runs is killed first, and removed in the next cycle."""
        try:
            status = await self._commands.find_command(workspace_id, exec_id)
            if status is not None and status.state is ExecState.RUNNING:
                await self._commands.kill_command(workspace_id, exec_id, "Forgotten")
                return
            await self._commands.forget_command(workspace_id, exec_id)
        except (ControlFailed, CommandForgotten, OSError) as error:
            logger.warning("what is kept of a command cannot be removed", id=exec_id, error=str(error))


def _surplus(kept: Mapping[str, frozenset[str]], wanted: set[str]) -> list[tuple[str, str]]:
    return [(name, exec_id) for name, ids in kept.items() for exec_id in sorted(ids - wanted)]
