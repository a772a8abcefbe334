"""Networks that users have signed in from, which a flood from other networks must not delay."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from codehub.clock import utc_now
from codehub.host.cancellation import raise_if_cancelled

logger = structlog.get_logger(__name__)

KEY: Final = "codehub:known-addresses"
MAX_KNOWN: Final = 10_000
KEPT_SECONDS: Final = 30 * 86_400
REFRESH_SECONDS: Final = 60.0
SAVE_SECONDS: Final = 1.0


class KnownNetworks:
    """In-memory copy of a Redis sorted set, so that a lookup during a flood costs no call.

    Each process adds to the set and reads it once a minute. Without Redis, a process has
    only the networks that it has seen.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._known: dict[str, float] = {}

    def __contains__(self, network: str) -> bool:
        return network in self._known

    async def remember(self, network: str) -> None:
        """Record a sign-in; if Redis fails, in this process only."""
        seen = {network: utc_now().timestamp()}
        self._merge(seen)
        try:
            async with asyncio.timeout(SAVE_SECONDS), self._redis.pipeline(transaction=False) as pipeline:
                pipeline.zadd(KEY, seen)
                pipeline.zremrangebyrank(KEY, 0, -MAX_KNOWN - 1)
                await pipeline.execute()
        except (RedisError, OSError, TimeoutError) as error:
            logger.warning("a known network was not saved", error=str(error))

    async def refresh(self) -> None:
        found: Any = await self._redis.zrange(KEY, 0, -1, withscores=True)
        self._merge({network.decode(): seen_at for network, seen_at in found})

    async def run(self) -> None:
        while True:
            try:
                await self.refresh()
            except (RedisError, OSError) as error:
                logger.warning("known networks cannot be read", error=str(error))
            raise_if_cancelled()
            await asyncio.sleep(REFRESH_SECONDS)

    def _merge(self, seen: Mapping[str, float]) -> None:
        oldest = utc_now().timestamp() - KEPT_SECONDS
        merged = {network: at for network, at in {**self._known, **seen}.items() if at > oldest}
        newest = sorted(merged, key=merged.__getitem__, reverse=True)[:MAX_KNOWN]
        self._known = {network: merged[network] for network in newest}
