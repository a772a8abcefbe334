"""Hands over what a worker has seen of the workspaces' use, and says until when it has."""

import asyncio
import time
from datetime import timedelta

from redis.asyncio import Redis
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine
from ulid import ULID

from codehub import log
from codehub.gateway.activity import Recorder
from codehub.store import gateways

logger = log.get(__name__)


class Handover:
    """The coordinator stops nobody as idle while a worker has not been heard of (specification, section 6).

    A worker is known from before its port answers until it has handed over everything at its end. One that
    is killed is missed, and waited for.
    """

    def __init__(self, recorder: Recorder, redis: Redis, engine: AsyncEngine) -> None:
        self._recorder = recorder
        self._redis = redis
        self._engine = engine
        self._id = str(ULID()).lower()

    async def begin(self) -> None:
        async with self._engine.begin() as conn:
            await gateways.hear(conn, self._id, timedelta(0))

    async def run(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            try:
                await self._hand_over()
            except (SQLAlchemyError, OSError) as error:
                logger.warning("the database does not take the heartbeat", error=str(error))

    async def end(self) -> None:
        """Hand over the rest, and be waited for no longer. What cannot be handed over leaves us missed."""
        try:
            if await self._hand_over():
                async with self._engine.begin() as conn:
                    await gateways.forget(conn, [self._id])
        except (SQLAlchemyError, OSError) as error:
            logger.warning("the database does not take the goodbye", error=str(error))

    async def _hand_over(self) -> bool:
        began = time.monotonic()
        if not await self._recorder.flush(self._redis):
            return False
        async with self._engine.begin() as conn:
            await gateways.hear(conn, self._id, timedelta(seconds=time.monotonic() - began))
        return True
