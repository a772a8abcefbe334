"""End of streams whose workspace stops.

The notifications come from PostgreSQL directly, as those of ended credentials do.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NoReturn

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.database import workspace_queries
from codehub.database.engine import CONNECTION_ERRORS
from codehub.database.notifications import NotificationListener
from codehub.domain.workspace import Workspace

logger = structlog.get_logger(__name__)

CHANGED: Final = "route_changed"
"""Channel on which a trigger announces changes of phase, operation and address."""
_RETRY_SECONDS: Final = 1.0


@dataclass(frozen=True, eq=False)
class _Watcher:
    is_over: Callable[[Workspace], bool]
    end: Callable[[], None]


class WorkspaceWatchers:
    """Registry of callbacks for workspaces that stop, with one LISTEN connection per process."""

    def __init__(self, database_url: str, engine: AsyncEngine) -> None:
        self._engine = engine
        self._watchers: dict[str, set[_Watcher]] = {}
        self._changed: dict[str, None] = {}
        """Watched workspaces that are to be read, oldest first."""
        self._has_changes = asyncio.Event()
        self._listener = NotificationListener(
            database_url, (CHANGED,), self._on_notification, on_connected=self._check_all
        )

    @contextmanager
    def watch(
        self, workspace_id: str, is_over: Callable[[Workspace], bool], end: Callable[[], None]
    ) -> Iterator[None]:
        """Call `end` once the workspace is deleted, or as `is_over` says. It is read at once."""
        watcher = _Watcher(is_over, end)
        self._watchers.setdefault(workspace_id, set()).add(watcher)
        self._check(workspace_id)
        try:
            yield
        finally:
            remaining = self._watchers[workspace_id]
            remaining.remove(watcher)
            if not remaining:
                del self._watchers[workspace_id]

    async def run(self) -> None:
        """Listen until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listener.run())
            tasks.create_task(self._read_changed())

    async def _read_changed(self) -> NoReturn:
        while True:
            await self._has_changes.wait()
            try:
                while self._changed:
                    workspace_id = next(iter(self._changed))
                    await self._read(workspace_id)
            except (SQLAlchemyError, *CONNECTION_ERRORS) as error:
                logger.warning("streams of workspaces cannot be checked", error=repr(error))
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                self._has_changes.clear()

    async def _read(self, workspace_id: str) -> None:
        """Read a workspace, and end its streams. A change that comes meanwhile is read again."""
        del self._changed[workspace_id]
        try:
            async with self._engine.connect() as conn:
                found = await workspace_queries.find(conn, workspace_id)
        except BaseException:
            self._changed[workspace_id] = None
            raise
        workspace = None if found is None or found.workspace.deleted_at is not None else found.workspace
        for watcher in tuple(self._watchers.get(workspace_id, ())):
            if workspace is None or watcher.is_over(workspace):
                watcher.end()

    def _check(self, workspace_id: str) -> None:
        if workspace_id in self._watchers:
            self._changed[workspace_id] = None
            self._has_changes.set()

    async def _check_all(self) -> None:
        """Check all streams: a change is lost while no connection listens."""
        for workspace_id in self._watchers:
            self._check(workspace_id)

    def _on_notification(self, channel: str, payload: str) -> None:
        try:
            self._check(str(json.loads(payload)["id"]))
        except (ValueError, KeyError, TypeError):
            logger.error("a notification is unreadable", channel=channel, payload=payload)
