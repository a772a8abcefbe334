"""PostgreSQL notifications, received over a connection that is replaced whenever it fails."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, NoReturn

import asyncpg
import structlog
from sqlalchemy.exc import SQLAlchemyError

from codehub.database.engine import CONNECTION_ERRORS, asyncpg_dsn
from codehub.host.cancellation import raise_if_cancelled

logger = structlog.get_logger(__name__)

FIRST_PAUSE: Final = 0.1


def _ignore() -> None: ...


class NotificationListener:
    """LISTEN loop: connects, subscribes, probes the connection, and reconnects with back-off.

    PostgreSQL drops what it sends while no connection listens. `on_connected` therefore runs after
    every connect, to catch up.
    """

    def __init__(
        self,
        database_url: str,
        channels: Sequence[str],
        on_notification: Callable[[str, str], None],
        *,
        on_connected: Callable[[], Awaitable[None]],
        on_answer: Callable[[], None] = _ignore,
        on_interrupted: Callable[[], None] = _ignore,
        probe_interval: float = 5.0,
        timeout: float = 5.0,
        longest_pause: float = 5.0,
    ) -> None:
        """`on_notification` takes channel and payload; `on_answer` follows each successful probe."""
        self._dsn = asyncpg_dsn(database_url)
        self._channels = channels
        self._on_notification = on_notification
        self._on_connected = on_connected
        self._on_answer = on_answer
        self._on_interrupted = on_interrupted
        self._probe_interval = probe_interval
        self._timeout = timeout
        self._longest_pause = longest_pause

    async def run(self) -> NoReturn:
        """Listen until cancelled."""
        pause = FIRST_PAUSE
        while True:
            try:
                async with self._connect() as connection:
                    await self._subscribe(connection)
                    pause = FIRST_PAUSE
                    await self._probe(connection)
            except (*CONNECTION_ERRORS, SQLAlchemyError) as error:
                logger.warning(
                    "PostgreSQL notifications are interrupted",
                    channels=self._channels,
                    error=repr(error),
                    next_try_in=pause,
                )
            self._on_interrupted()
            raise_if_cancelled()
            await asyncio.sleep(pause)
            pause = min(pause * 2, self._longest_pause)

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
        connection = await asyncpg.connect(self._dsn, timeout=self._timeout)
        try:
            yield connection
        finally:
            connection.terminate()

    async def _subscribe(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        for channel in self._channels:
            await connection.add_listener(channel, self._receive)
        await self._on_connected()

    async def _probe(self, connection: "asyncpg.Connection[asyncpg.Record]") -> NoReturn:
        while True:
            raise_if_cancelled()
            await asyncio.sleep(self._probe_interval)
            await connection.execute("SELECT 1", timeout=self._timeout)
            self._on_answer()

    def _receive(self, _connection: object, _pid: int, channel: str, payload: object) -> None:
        self._on_notification(channel, str(payload))
