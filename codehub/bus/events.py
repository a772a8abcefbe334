"""Hints about workspaces, on their way through Redis to the event streams of their owners.

A hint carries an id only. Redis keeps no history, so whenever hints may have been lost a feed is told
to start over, and its reader sends a fresh snapshot.
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
"""The channel suffix for `resync`; no user id looks like it."""

MAX_WAITING_HINTS: Final = 256
SUBSCRIBE_TIMEOUT: Final = 2.0
SILENCE: Final = 10.0
"""Seconds without a word from Redis before it is asked whether it is there, and as many to answer."""
LONGEST_PAUSE: Final = 5.0


@dataclass(frozen=True)
class Message:
    channel: str
    payload: str


def sse_message(prefix: str, user_id: str, payload: Mapping[str, str]) -> Message:
    """Tells the streams of one user that a workspace changed: `{"type": ..., "id": workspace_id}`."""
    return Message(prefix + user_id, json.dumps(payload))


def resync_message(prefix: str) -> Message:
    """Tells every stream to send a fresh snapshot, because hints may have been lost on the way here."""
    return Message(prefix + EVERYONE, json.dumps({"type": "resync"}))


async def publish(redis: Redis, messages: Iterable[Message]) -> None:
    """All of them in one round trip."""
    async with redis.pipeline(transaction=False) as pipeline:
        for message in messages:
            pipeline.publish(message.channel, message.payload)
        await pipeline.execute()


@dataclass(frozen=True)
class Changes:
    """What a feed has to look at: everything, or some workspaces. Both empty means nothing happened."""

    everything: bool = False
    workspace_ids: tuple[str, ...] = ()


class Feed:
    """The hints that wait for one stream. Repeated hints are one; too many become "everything"."""

    def __init__(self) -> None:
        self._waiting: dict[str, None] = {}
        self._everything = False
        self._ended = asyncio.Event()
        self._stirred = asyncio.Event()

    def hint(self, workspace_id: str) -> None:
        if self._everything:
            return
        self._waiting[workspace_id] = None
        if len(self._waiting) > MAX_WAITING_HINTS:
            self.start_over()
        self._stirred.set()

    def start_over(self) -> None:
        self._everything = True
        self._waiting.clear()
        self._stirred.set()

    def end(self) -> None:
        self._ended.set()

    async def wait_ended(self) -> None:
        await self._ended.wait()

    async def changes(self, timeout: float) -> Changes:
        """What has happened since the last call; waits for something up to `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._stirred.wait()
        except TimeoutError:
            return Changes()
        found = Changes(self._everything, tuple(self._waiting))
        self._everything = False
        self._waiting.clear()
        self._stirred.clear()
        return found


class Subscriptions:
    """One Redis subscription connection for the process, fanned out to the feeds of its streams."""

    def __init__(self, redis: Redis, prefix: str) -> None:
        self._redis = redis
        self._prefix = prefix
        self._feeds: dict[str, set[Feed]] = {}
        self._confirmed: dict[str, asyncio.Event] = {}
        self._pubsub: PubSub | None = None

    @asynccontextmanager
    async def feed(self, user_id: str) -> AsyncIterator[Feed]:
        """A feed that misses nothing from here on; its first changes are "everything".

        When Redis is away it is given out all the same, and told to start over once Redis is back.
        """
        feed = Feed()
        feeds = self._feeds.setdefault(user_id, set())
        feeds.add(feed)
        try:
            if len(feeds) == 1:
                self._confirmed[user_id] = asyncio.Event()
                await self._send_subscribe(user_id)
            await self._await_confirmation(user_id)
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
        """Listen until cancelled; reconnect whenever Redis goes."""
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
        asked = False
        while True:
            raise_if_cancelled()
            message = await pubsub.get_message(timeout=SILENCE)
            if message is not None:
                asked = False
                self._take(message)
            elif asked:
                raise OSError("Redis does not answer")
            else:
                asked = True
                await pubsub.ping()

    def _take(self, message: Mapping[str, Any]) -> None:
        if message["type"] not in ("subscribe", "message"):
            return
        name = _text(message["channel"]).removeprefix(self._prefix)
        if message["type"] == "subscribe":
            self._confirm(name)
        elif name == EVERYONE:
            for feed in self._every_feed():
                feed.start_over()
        else:
            self._hint(name, message["data"])

    def _confirm(self, user_id: str) -> None:
        """A confirmation that comes again means a reconnect, so it also starts the feeds over."""
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

    async def _await_confirmation(self, user_id: str) -> None:
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
            logger.warning("subscribing failed, and is repeated on reconnect", error=str(error))

    async def _send_unsubscribe(self, user_id: str) -> None:
        if self._pubsub is None:
            return
        try:
            await self._pubsub.unsubscribe(self._prefix + user_id)
        except (RedisError, OSError) as error:
            logger.debug("unsubscribing failed; the subscription ended with its connection", error=str(error))


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
