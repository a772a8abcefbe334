"""The push channel: PostgreSQL tells what changed, the moment it is committed."""

import asyncio
import json
from typing import Any, Final

import asyncpg

from codehub import log
from codehub.cancellation import raise_if_cancelled
from codehub.database.engine import ConnectionTrouble, asyncpg_dsn
from codehub.gateway.revocation import Watch

logger = log.get(__name__)

PING_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 3.0
LONGEST_PAUSE: Final = 2.0
CHANNELS: Final = ("route_changed", "session_ended", "user_changed")


class PushChannel:
    def __init__(self, database_url: str, watch: Watch) -> None:
        self._dsn = asyncpg_dsn(database_url)
        self._watch = watch
        self.listening = asyncio.Event()

    async def run(self) -> None:
        """Listen until cancelled; reconnect whenever the connection goes or falls silent."""
        pause = 0.1
        while True:
            try:
                await self._listen()
            except ConnectionTrouble as error:
                logger.warning("the push channel is interrupted", error=repr(error), next_try_in=pause)
            pause = 0.1 if self.listening.is_set() else min(pause * 2, LONGEST_PAUSE)
            self.listening.clear()
            self._watch.lost()
            raise_if_cancelled()
            await asyncio.sleep(pause)

    async def _listen(self) -> None:
        connection = await asyncpg.connect(self._dsn, timeout=ANSWER_SECONDS)
        try:
            for channel in CHANNELS:
                await connection.add_listener(channel, self._on_notify)
            self._watch.regained()
            self.listening.set()
            while True:
                await asyncio.sleep(PING_SECONDS)
                await connection.execute("SELECT 1", timeout=ANSWER_SECONDS)
                self._watch.answered()
                raise_if_cancelled()
        finally:
            connection.terminate()

    def _on_notify(self, _connection: Any, _pid: int, channel: str, payload: object) -> None:
        try:
            told = json.loads(str(payload))
            if channel == "session_ended":
                self._watch.session_ended(bytes.fromhex(told["id_hash"]))
            elif channel == "user_changed":
                self._watch.user_changed(str(told["id"]))
            else:
                self._watch.route_changed(str(told["id"]))
        except (ValueError, KeyError, TypeError):
            logger.warning("a notification is unreadable", channel=channel)
            self._watch.unreadable()
