"""The EventListener: PostgreSQL NOTIFY becomes Redis PUBLISH and hints. Nothing depends on one arriving."""

import asyncio
import json
from collections.abc import Callable

import asyncpg
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from codehub.bus.events import publish_resync, publish_sse
from codehub.coordinator.endings import end_if_cancelled
from codehub.store.engine import ConnectionTrouble, asyncpg_dsn

log = structlog.get_logger(__name__)

CHANNELS = {"ws_sse": "workspace_updated", "ws_deleted": "workspace_deleted", "ws_wake": "wake"}
ALIVE_EVERY = 5.0


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
        self._waiting: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    async def run(self) -> None:
        """Listen until cancelled; after every reconnect everything is looked at and told anew."""
        pause = 0.1
        while True:
            end_if_cancelled()
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
        await self._publish(lambda: publish_resync(self._redis, self._sse_prefix))
        while True:
            end_if_cancelled()
            try:
                async with asyncio.timeout(ALIVE_EVERY):
                    channel, payload = await self._waiting.get()
            except TimeoutError:
                await connection.execute("SELECT 1", timeout=ALIVE_EVERY)
                continue
            await self._forward(channel, payload)

    def _take(self, connection: object, pid: int, channel: str, payload: object) -> None:
        if channel == "ws_wake":
            self._hint(json.loads(str(payload))["id"])
        self._waiting.put_nowait((channel, str(payload)))

    async def _forward(self, channel: str, payload: str) -> None:
        fact = json.loads(payload)
        if channel == "ws_wake":
            await self._publish(lambda: self._redis.publish(self._wake_channel, fact["id"]))
            return
        event = {"type": CHANNELS[channel], "id": fact["id"]}
        await self._publish(lambda: publish_sse(self._redis, self._sse_prefix, fact["user_id"], event))

    async def _publish(self, send: Callable[[], object]) -> None:
        """A hint that Redis does not take is lost, and that is all: streams start over when it is back."""
        try:
            await send()  # type: ignore[misc]
        except (RedisError, OSError) as error:
            log.warning("a hint could not be published", error=str(error))
