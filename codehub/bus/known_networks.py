"""Networks that users have signed in from, which a flood from other networks must not delay."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from codehub.clock import utc_now
from codehub.host.cancellation import raise_if_cancelled

logger = structlog.get_logger(__name__)

KEY: Final = "codehub:known-networks"
MAX_KNOWN: Final = 10_000
MAX_PER_USER: Final = 20
"""A user with an IPv6 /48 has 65,536 networks, which must not push out those of all others."""
KEPT_SECONDS: Final = 30 * 86_400
REFRESH_SECONDS: Final = 60.0
SAVE_SECONDS: Final = 1.0


class KnownNetworks:
    """In-memory copy of a Redis sorted set, so that a lookup during a flood costs no call.

    Its members are pairs of a user and a network, so that each user has a share of them. Each process
    adds to the set and reads it once a minute. Without Redis, a process has only the networks that it
    has seen.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._seen: dict[str, float] = {}
        self._networks: frozenset[str] = frozenset()

    def __contains__(self, network: str) -> bool:
        return network in self._networks

    async def remember(self, user_id: str, network: str) -> None:
        """Record a sign-in; if Redis fails, in this process only."""
        seen = {f"{user_id} {network}": utc_now().timestamp()}
        dropped = self._merge(seen)
        try:
            async with asyncio.timeout(SAVE_SECONDS), self._redis.pipeline(transaction=False) as pipeline:
                pipeline.zadd(KEY, seen)
                if dropped:
                    pipeline.zrem(KEY, *dropped)
                await pipeline.execute()
        except (RedisError, OSError, TimeoutError) as error:
            logger.warning("a known network was not saved", error=str(error))

    async def refresh(self) -> None:
        """Read the set, and remove from it what exceeds the limits."""
        found: Any = await self._redis.zrange(KEY, 0, -1, withscores=True)
        if dropped := self._merge({member.decode(): seen_at for member, seen_at in found}):
            await self._redis.zrem(KEY, *dropped)

    async def run(self) -> None:
        while True:
            try:
                await self.refresh()
            except (RedisError, OSError) as error:
                logger.warning("known networks cannot be read", error=str(error))
            raise_if_cancelled()
            await asyncio.sleep(REFRESH_SECONDS)

    def _merge(self, seen: Mapping[str, float]) -> list[str]:
        """Add sign-ins, keep the newest of each user, and return the members that are dropped."""
        oldest = utc_now().timestamp() - KEPT_SECONDS
        merged = {**self._seen, **seen}
        kept: dict[str, float] = {}
        of_user: Counter[str] = Counter()
        for member in sorted(merged, key=merged.__getitem__, reverse=True):
            user_id = member.partition(" ")[0]
            if merged[member] > oldest and len(kept) < MAX_KNOWN and of_user[user_id] < MAX_PER_USER:
                kept[member] = merged[member]
                of_user[user_id] += 1
        self._seen = kept
        self._networks = frozenset(member.partition(" ")[2] for member in kept)
        return [member for member in merged if member not in kept]
