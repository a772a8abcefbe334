"""Revocation of event streams when their session ends.

The notifications come from PostgreSQL directly and not through Redis: the way through Redis needs a running
coordinator, and signing out must work without one.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.clock import utc_now
from codehub.database.notifications import NotificationListener
from codehub.database.sessions import valid_sessions

logger = structlog.get_logger(__name__)

CHANNEL: Final = "session_ended"


class SessionRevocations:
    """Registry of callbacks for the end of sessions, with one LISTEN connection per process."""

    def __init__(self, database_url: str, engine: AsyncEngine) -> None:
        self._engine = engine
        self._watchers: dict[bytes, list[Callable[[], None]]] = {}
        self._listener = NotificationListener(
            database_url, (CHANNEL,), self._on_notification, on_connected=self._catch_up
        )

    @contextmanager
    def watch(self, id_hash: bytes, ended: Callable[[], None]) -> Iterator[None]:
        self._watchers.setdefault(id_hash, []).append(ended)
        try:
            yield
        finally:
            remaining = self._watchers[id_hash]
            remaining.remove(ended)
            if not remaining:
                del self._watchers[id_hash]

    async def run(self) -> None:
        """Listen until cancelled."""
        await self._listener.run()

    async def _catch_up(self) -> None:
        """End the streams of sessions that ended while no connection listened."""
        watched = list(self._watchers)
        if not watched:
            return
        async with self._engine.connect() as conn:
            living = await valid_sessions(conn, watched, utc_now())
        for id_hash in watched:
            if id_hash not in living:
                self._end(id_hash)

    def _on_notification(self, _channel: str, payload: str) -> None:
        try:
            id_hash = bytes.fromhex(json.loads(payload)["id_hash"])
        except (ValueError, KeyError, TypeError):
            logger.error("the notification of an ended session is unreadable", payload=payload)
            return
        self._end(id_hash)

    def _end(self, id_hash: bytes) -> None:
        for ended in tuple(self._watchers.get(id_hash, ())):
            ended()
