"""The EventListener: PostgreSQL NOTIFY becomes Redis PUBLISH and hints. Nothing depends on one arriving."""

import asyncio
import json
from collections.abc import Callable

import asyncpg
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from codehub.bus.events import Message, publish, resync_message, sse_message
from codehub.database.engine import ConnectionTrouble, asyncpg_dsn
from codehub.host.cancellation import raise_if_cancelled

log = structlog.get_logger(__name__)

CHANNELS = {"ws_sse": "workspace_updated", "ws_deleted": "workspace_deleted", "ws_wake": "wake"}
ALIVE_EVERY = 5.0
GATHER = 0.01
"""Seconds in which what is to be told is gathered: a step that is made at once tells of itself once."""


class Listener:
    def __init__(
        self,
        url: str,
        redis: Redis,
        *,
        sse_prefix: str,
        wake_prefix: str,
        hint: Callable[[str], None],
        resync: Callable[[], None],
    ) -> None:
        self._url = url
        self._redis = redis
        self._sse_prefix = sse_prefix
        self._wake_channel = f"{wake_prefix}wc"
        self._hint = hint
        self._resync = resync
        self._waiting: dict[tuple[str, str], None] = {}
        self._stirred = asyncio.Event()

    async def run(self) -> None:
        """Listen until cancelled; after every reconnect everything is looked at and told anew."""
        pause = 0.1
        while True:
            raise_if_cancelled()
            try:
                connection = await asyncpg.connect(asyncpg_dsn(self._url), timeout=ALIVE_EVERY)
            except ConnectionTrouble as error:
                log.warning("listening is interrupted", error=str(error), next_try_in=pause)
                await asyncio.sleep(pause)
                pause = min(pause * 2, ALIVE_EVERY)
                continue
            pause = 0.1
            try:
                await self._listen(connection)
            except ConnectionTrouble as error:
                log.warning("listening is interrupted", error=str(error))
            finally:
                connection.terminate()

    async def _listen(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        for channel in CHANNELS:
            await connection.add_listener(channel, self._take)
        self._resync()
        await self._publish([resync_message(self._sse_prefix)])
        while True:
            raise_if_cancelled()
            try:
                async with asyncio.timeout(ALIVE_EVERY):
                    await self._stirred.wait()
            except TimeoutError:
                await connection.execute("SELECT 1", timeout=ALIVE_EVERY)
                continue
            await asyncio.sleep(GATHER)
            self._stirred.clear()
            waiting, self._waiting = self._waiting, {}
            await self._publish([self._message(channel, payload) for channel, payload in waiting])

    def _take(self, connection: object, pid: int, channel: str, payload: object) -> None:
        if channel == "ws_wake":
            self._hint(json.loads(str(payload))["id"])
        self._waiting[channel, str(payload)] = None
        self._stirred.set()

    def _message(self, channel: str, payload: str) -> Message:
        fact = json.loads(payload)
        if channel == "ws_wake":
            return Message(self._wake_channel, fact["id"])
        event = {"type": CHANNELS[channel], "id": fact["id"]}
        return sse_message(self._sse_prefix, fact["user_id"], event)

    async def _publish(self, messages: list[Message]) -> None:
        """A hint that Redis does not take is lost, and that is all: streams start over when it is back."""
        try:
            await publish(self._redis, messages)
        except (RedisError, OSError) as error:
            log.warning("hints could not be published", error=str(error), hints=len(messages))
