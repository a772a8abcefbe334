"""Revocation of streams when their credential ends, or their workspace is deleted or changes its owner."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.asgi.credential_revocation import CredentialRevocations
from codehub.database import workspace_queries
from codehub.database.engine import CONNECTION_ERRORS

logger = structlog.get_logger(__name__)

CHANGED: Final = "route_changed"
"""Channel on which a trigger announces a new owner or a deletion, and each new phase."""


@dataclass(frozen=True, eq=False)
class _Stream:
    """Stream of a user that belongs to one workspace."""

    user_id: str
    end: Callable[[], None]


class StreamRevocations(CredentialRevocations):
    """Registry of callbacks for the end of credentials and of workspaces, with one LISTEN connection."""

    channels = (*CredentialRevocations.channels, CHANGED)

    def __init__(self, database_url: str, engine: AsyncEngine) -> None:
        super().__init__(database_url, engine)
        self._streams: dict[str, set[_Stream]] = {}

    @contextmanager
    def watch_workspace(self, workspace_id: str, user_id: str, end: Callable[[], None]) -> Iterator[None]:
        """Call `end` when the workspace is deleted, or no longer belongs to the user."""
        stream = _Stream(user_id, end)
        streams = self._streams.setdefault(workspace_id, set())
        streams.add(stream)
        try:
            yield
        finally:
            streams.discard(stream)
            if not streams and self._streams.get(workspace_id) is streams:
                del self._streams[workspace_id]

    async def _check_all(self) -> None:
        await super()._check_all()
        for workspace_id in tuple(self._streams):
            await self._check_workspace(workspace_id)

    async def _check_workspace(self, workspace_id: str) -> None:
        """End the streams that may no longer read. If the database does not answer, end all."""
        owner_id = None
        try:
            async with self._engine.connect() as conn:
                found = await workspace_queries.find(conn, workspace_id)
            if found is not None and found.workspace.deleted_at is None:
                owner_id = found.workspace.owner_id
        except (SQLAlchemyError, *CONNECTION_ERRORS) as error:
            logger.warning("a workspace could not be checked, so its streams end", error=str(error))
        for stream in tuple(self._streams.get(workspace_id, ())):
            if stream.user_id != owner_id:
                stream.end()

    def _on_notification(self, channel: str, payload: str) -> None:
        if channel != CHANGED:
            super()._on_notification(channel, payload)
            return
        try:
            workspace_id = json.loads(payload)["id"]
        except (ValueError, KeyError, TypeError):
            logger.error("a notification is unreadable", channel=channel, payload=payload)
            return
        if workspace_id in self._streams:
            self._start(self._check_workspace(workspace_id))
