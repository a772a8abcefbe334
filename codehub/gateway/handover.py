"""Hands over what a worker has seen of the workspaces' use, and says until when it has."""

import asyncio
import time
from datetime import timedelta

from redis.asyncio import Redis
from ulid import ULID

from codehub import log
from codehub.gateway.activity import Recorder
from codehub.store import gateways
from codehub.store.engine import ConnectionTrouble

logger = log.get(__name__)


class Handover:
    """The coordinator stops nobody as idle while a worker has not been heard of (specification, section 6).

    A worker is known from before its port answers until it has handed over everything at its end. One that
    is killed is missed, and waited for.
    """

    def __init__(self, recorder: Recorder, redis: Redis, database_url: str) -> None:
        self._recorder = recorder
        self._redis = redis
        self._url = database_url
        self._id = str(ULID()).lower()

    async def begin(self) -> None:
        await gateways.hear(self._url, self._id, timedelta(0))

    async def run(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            try:
                await self._hand_over()
            except ConnectionTrouble as error:
                logger.warning("the database does not take the heartbeat", error=str(error))

    async def end(self) -> None:
        """Hand over the rest, and be waited for no longer. What cannot be handed over leaves us missed."""
        try:
            if await self._hand_over():
                await gateways.leave(self._url, self._id)
        except ConnectionTrouble as error:
            logger.warning("the database does not take the goodbye", error=str(error))

    async def _hand_over(self) -> bool:
        began = time.monotonic()
        if not await self._recorder.flush(self._redis):
            return False
        await gateways.hear(self._url, self._id, timedelta(seconds=time.monotonic() - began))
        return True
