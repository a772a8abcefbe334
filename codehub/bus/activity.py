"""The activity ZSET: when each workspace was last used, on its way to last_access_at."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from redis.asyncio import Redis

KEY: Final = "codehub:activity"

# A member whose score has grown since it was read is newer activity, and stays.
_REMOVE: Final = """
local removed = 0
for i = 1, #ARGV, 2 do
    local score = redis.call('ZSCORE', KEYS[1], ARGV[i])
    if score and tonumber(score) <= tonumber(ARGV[i + 1]) then
        removed = removed + redis.call('ZREM', KEYS[1], ARGV[i])
    end
end
return removed
"""


@dataclass(frozen=True)
class ActivityLog:
    redis: Redis

    async def flush(self, seen: Mapping[str, float]) -> None:
        """Record when workspaces were used (seconds since the epoch); a score only ever grows."""
        if seen:
            await self.redis.zadd(KEY, dict(seen), gt=True)

    async def read(self) -> dict[str, float]:
        members: list[tuple[bytes | str, float]] = await self.redis.zrange(KEY, 0, -1, withscores=True)  # type: ignore[assignment]
        return {_text(member): score for member, score in members}

    async def remove(self, carried: Mapping[str, float]) -> int:
        """Forget what was carried over, unless it has grown since. How many were forgotten."""
        if not carried:
            return 0
        arguments = [part for member, score in carried.items() for part in (member, repr(score))]
        return int(await self.redis.eval(_REMOVE, 1, KEY, *arguments))


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
