"""Publish/subscribe of hints: Redis messages that a workspace has changed, for event streams.

A hint carries an id only. Redis keeps no history. If hints may have been lost, a feed starts over,
and its reader sends a new snapshot.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import structlog
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from codehub.host.cancellation import raise_if_cancelled

logger = structlog.get_logger(__name__)

EVERYONE: Final = "all"
"""Channel suffix of `resync`. No user id has this form."""

MAX_PENDING_HINTS: Final = 256
SUBSCRIBE_TIMEOUT: Final = 2.0
SILENCE_SECONDS: Final = 10.0
"""Time without a message before a ping is sent, and time for its answer."""
LONGEST_PAUSE: Final = 5.0


@dataclass(frozen=True)
class Message:
    channel: str
    payload: str


def hint_message(prefix: str, user_id: str, payload: Mapping[str, str]) -> Message:
    """Return a hint for the streams of one user: `{"type": ..., "id": workspace_id}`."""
    return Message(prefix + user_id, json.dumps(payload))


def resync_message(prefix: str) -> Message:
    """Return a message that makes every stream send a new snapshot."""
    return Message(prefix + EVERYONE, json.dumps({"type": "resync"}))


async def publish(redis: Redis, messages: Iterable[Message]) -> None:
    """Publish all messages in one round trip."""
    async with redis.pipeline(transaction=False) as pipeline:
        for message in messages:
            pipeline.publish(message.channel, message.payload)
        await pipeline.execute()


@dataclass(frozen=True)
class Changes:
    """Workspaces that have changed: all, some, or none."""

    everything: bool = False
    workspace_ids: tuple[str, ...] = ()


class Feed:
    """Queue of hints for one stream.

    It removes duplicates, and replaces too many by "everything".
    """

    def __init__(self) -> None:
        self._pending: dict[str, None] = {}
        self._everything = False
        self._ended = asyncio.Event()
        self._changed = asyncio.Event()

    def hint(self, workspace_id: str) -> None:
        if self._everything:
            return
        self._pending[workspace_id] = None
        if len(self._pending) > MAX_PENDING_HINTS:
            self.start_over()
        self._changed.set()

    def start_over(self) -> None:
        self._everything = True
        self._pending.clear()
        self._changed.set()

    def end(self) -> None:
        self._ended.set()

    async def wait_ended(self) -> None:
        await self._ended.wait()

    async def changes(self, timeout: float) -> Changes:
        """Return the changes since the last call; wait for one for up to `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            return Changes()
        found = Changes(self._everything, tuple(self._pending))
        self._everything = False
        self._pending.clear()
        self._changed.clear()
        return found


class Subscriptions:
    """One Redis subscription of the process, with a fan-out to the feeds of its streams."""

    def __init__(self, redis: Redis, prefix: str) -> None:
        self._redis = redis
        self._prefix = prefix
        self._feeds: dict[str, set[Feed]] = {}
        self._confirmed: dict[str, asyncio.Event] = {}
        self._pubsub: PubSub | None = None

    @asynccontextmanager
    async def feed(self, user_id: str) -> AsyncIterator[Feed]:
        """Yield a feed that misses nothing from here on. Its first changes are "everything".

        Without Redis, the feed starts over once Redis answers again.
        """
        feed = Feed()
        feeds = self._feeds.setdefault(user_id, set())
        feeds.add(feed)
        try:
            if len(feeds) == 1:
                self._confirmed[user_id] = asyncio.Event()
                await self._send_subscribe(user_id)
            await self._wait_for_confirmation(user_id)
            feed.start_over()
            yield feed
        finally:
            feeds.discard(feed)
            if not feeds:
                self._feeds.pop(user_id, None)
                self._confirmed.pop(user_id, None)
                await self._send_unsubscribe(user_id)

    def end_all(self) -> None:
        for feed in self._every_feed():
            feed.end()

    async def run(self) -> None:
        """Listen until cancelled; reconnect with back-off."""
        pause = 0.1
        while True:
            try:
                async with self._redis.pubsub() as pubsub:
                    await self._subscribe_all(pubsub)
                    pause = 0.1
                    await self._listen(pubsub)
            except (RedisError, OSError) as error:
                logger.warning("event hints are interrupted", error=str(error), next_try_in=pause)
            finally:
                self._pubsub = None
                for event in self._confirmed.values():
                    event.clear()
            raise_if_cancelled()
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _subscribe_all(self, pubsub: PubSub) -> None:
        await pubsub.subscribe(self._prefix + EVERYONE)
        self._pubsub = pubsub
        for user_id in list(self._feeds):
            await pubsub.subscribe(self._prefix + user_id)

    async def _listen(self, pubsub: PubSub) -> None:
        has_pinged = False
        while True:
            raise_if_cancelled()
            message = await pubsub.get_message(timeout=SILENCE_SECONDS)
            if message is not None:
                has_pinged = False
                self._dispatch(message)
            elif has_pinged:
                raise OSError("Redis does not answer")
            else:
                has_pinged = True
                await pubsub.ping()

    def _dispatch(self, message: Mapping[str, Any]) -> None:
        if message["type"] not in ("subscribe", "message"):
            return
        name = _decode_text(message["channel"]).removeprefix(self._prefix)
        if message["type"] == "subscribe":
            self._confirm(name)
        elif name == EVERYONE:
            for feed in self._every_feed():
                feed.start_over()
        else:
            self._hint(name, message["data"])

    def _confirm(self, user_id: str) -> None:
        """Mark a subscription as confirmed. It may follow a reconnect, so its feeds start over."""
        for feed in self._feeds.get(user_id, ()):
            feed.start_over()
        if confirmed := self._confirmed.get(user_id):
            confirmed.set()

    def _hint(self, user_id: str, data: bytes | str) -> None:
        try:
            workspace_id = json.loads(data)["id"]
        except (ValueError, KeyError, TypeError):
            logger.warning("an event hint is unreadable", user_id=user_id)
            for feed in self._feeds.get(user_id, ()):
                feed.start_over()
            return
        for feed in self._feeds.get(user_id, ()):
            feed.hint(str(workspace_id))

    def _every_feed(self) -> list[Feed]:
        return [feed for feeds in self._feeds.values() for feed in feeds]

    async def _wait_for_confirmation(self, user_id: str) -> None:
        try:
            async with asyncio.timeout(SUBSCRIBE_TIMEOUT):
                await self._confirmed[user_id].wait()
        except TimeoutError:
            logger.warning("an event stream starts while Redis does not answer", user_id=user_id)

    async def _send_subscribe(self, user_id: str) -> None:
        if self._pubsub is None:
            return
        try:
            await self._pubsub.subscribe(self._prefix + user_id)
        except (RedisError, OSError) as error:
            logger.warning("subscribing failed; it is repeated after a reconnect", error=str(error))

    async def _send_unsubscribe(self, user_id: str) -> None:
        if self._pubsub is None:
            return
        try:
            await self._pubsub.unsubscribe(self._prefix + user_id)
        except (RedisError, OSError) as error:
            logger.debug("unsubscribing failed; the subscription ended with its connection", error=str(error))


def _decode_text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
