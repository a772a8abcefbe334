"""Event listener: forwards PostgreSQL notifications to Redis and to the controller's work queue.

Nothing depends on a single notification. After each reconnect, the controller and all streams start over.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Final

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from codehub.bus.events import Message, hint_message, publish, resync_message
from codehub.database.notifications import NotificationListener
from codehub.host.cancellation import raise_if_cancelled

logger = structlog.get_logger(__name__)

EVENTS: Final = {"ws_sse": "workspace_updated", "ws_deleted": "workspace_deleted"}
"""The event that streams receive, by channel."""
WAKE: Final = "ws_wake"
BATCH_SECONDS: Final = 0.01
"""How long notifications are collected: equal ones of this time are published once."""


class EventListener:
    def __init__(
        self,
        url: str,
        redis: Redis,
        *,
        sse_prefix: str,
        hint: Callable[[str], None],
        resync: Callable[[], None],
    ) -> None:
        self._redis = redis
        self._sse_prefix = sse_prefix
        self._hint = hint
        self._resync = resync
        self._pending: dict[tuple[str, str], None] = {}
        self._has_pending = asyncio.Event()
        self._listener = NotificationListener(
            url, (*EVENTS, WAKE), self._on_notification, on_connected=self._on_connected
        )

    async def run(self) -> None:
        """Forward notifications until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listener.run())
            tasks.create_task(self._publish_batches())

    async def _on_connected(self) -> None:
        self._resync()
        await self._publish([resync_message(self._sse_prefix)])

    def _on_notification(self, channel: str, payload: str) -> None:
        if channel == WAKE:
            self._hint(json.loads(payload)["id"])
            return
        self._pending[channel, payload] = None
        self._has_pending.set()

    async def _publish_batches(self) -> None:
        while True:
            raise_if_cancelled()
            await self._has_pending.wait()
            await asyncio.sleep(BATCH_SECONDS)
            self._has_pending.clear()
            pending, self._pending = self._pending, {}
            await self._publish([self._message(channel, payload) for channel, payload in pending])

    def _message(self, channel: str, payload: str) -> Message:
        fields = json.loads(payload)
        return hint_message(
            self._sse_prefix, fields["user_id"], {"type": EVENTS[channel], "id": fields["id"]}
        )

    async def _publish(self, messages: list[Message]) -> None:
        """Publish, or drop the messages if Redis fails: streams start over once it is back."""
        try:
            await publish(self._redis, messages)
        except (RedisError, OSError) as error:
            logger.warning("events could not be published", error=str(error), events=len(messages))
