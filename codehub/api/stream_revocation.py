"""Ends event streams when their session ends.

This listens to PostgreSQL itself and not to Redis, because the way through Redis needs a living
coordinator, and signing out must work without one.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import asyncpg
import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.cancellation import raise_if_cancelled
from codehub.clock import utc_now
from codehub.database.engine import ConnectionTrouble, asyncpg_dsn
from codehub.database.sessions import living_sessions

log = structlog.get_logger(__name__)

CHANNEL: Final = "session_ended"
PROBE_INTERVAL: Final = 5.0
LONGEST_PAUSE: Final = 5.0


class SessionEnds:
    """One LISTEN connection for the process; what it may have missed is looked up after each reconnect."""

    def __init__(self, database_url: str, engine: AsyncEngine) -> None:
        self._dsn = asyncpg_dsn(database_url)
        self._engine = engine
        self._watchers: dict[bytes, list[Callable[[], None]]] = {}

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
        pause = 0.1
        while True:
            try:
                conn = await asyncpg.connect(self._dsn, timeout=PROBE_INTERVAL)
                pause = 0.1
                try:
                    await self._listen(conn)
                finally:
                    conn.terminate()
            except (*ConnectionTrouble, SQLAlchemyError) as error:
                log.warning("word of ended sessions is interrupted", error=str(error), next_try_in=pause)
            raise_if_cancelled()
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _listen(self, conn: "asyncpg.Connection[Any]") -> None:
        await conn.add_listener(CHANNEL, self._on_notify)
        await self._catch_up()
        while True:
            await asyncio.sleep(PROBE_INTERVAL)
            await conn.execute("SELECT 1", timeout=PROBE_INTERVAL)
            raise_if_cancelled()

    async def _catch_up(self) -> None:
        watched = list(self._watchers)
        if not watched:
            return
        async with self._engine.connect() as conn:
            living = await living_sessions(conn, watched, utc_now())
        for id_hash in watched:
            if id_hash not in living:
                self._end(id_hash)

    def _on_notify(self, _conn: object, _pid: int, _channel: str, payload: object) -> None:
        try:
            id_hash = bytes.fromhex(json.loads(str(payload))["id_hash"])
        except (ValueError, KeyError, TypeError):
            log.error("word of an ended session is unreadable", payload=payload)
            return
        self._end(id_hash)

    def _end(self, id_hash: bytes) -> None:
        for ended in tuple(self._watchers.get(id_hash, ())):
            ended()
