"""Activity log: a sorted set with the time of the last use of each workspace.

The coordinator writes these times to last_access_at. The set also has a member for each gateway
worker, with the number of its last flush. If Redis loses a flush, it loses the number too, so the
coordinator notices (ADR 0018).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from redis.asyncio import Redis

from codehub.domain.gateway_reports import ActivitySnapshot

KEY: Final = "codehub:activity"
GATEWAY: Final = "gateway:"

# A member whose score has grown since it was read is newer activity, and remains.
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
    """Reader and writer of the sorted set."""

    redis: Redis

    async def flush(self, uses: Mapping[str, float], gateway_id: str, number: int) -> None:
        """Record the times of use (seconds since the epoch), and the number of this flush.

        Scores only grow.
        """
        await self.redis.zadd(KEY, {**uses, GATEWAY + gateway_id: number}, gt=True)

    async def read(self) -> ActivitySnapshot:
        members: list[tuple[bytes | str, float]] = await self.redis.zrange(KEY, 0, -1, withscores=True)  # type: ignore[assignment]
        scores = {_decode_text(member): score for member, score in members}
        return ActivitySnapshot(
            {member: score for member, score in scores.items() if not member.startswith(GATEWAY)},
            {
                member.removeprefix(GATEWAY): int(score)
                for member, score in scores.items()
                if member.startswith(GATEWAY)
            },
        )

    async def remove(self, carried: ActivitySnapshot) -> int:
        """Remove these members, unless their scores have grown; return how many were removed."""
        numbers = {GATEWAY + gateway_id: float(number) for gateway_id, number in carried.flushes.items()}
        scores = {**carried.uses, **numbers}
        if not scores:
            return 0
        arguments = [part for member, score in scores.items() for part in (member, repr(score))]
        return int(await self.redis.eval(_REMOVE, 1, KEY, *arguments))


def _decode_text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
