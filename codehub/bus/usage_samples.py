"""Samples of what running workspaces use: a Redis list for each workspace, of the last hour (ADR 0039).

Samples that Redis loses are not missed: new ones follow. They are read leniently, because another
version of CodeHub may have written them.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import TypeAdapter, ValidationError
from redis.asyncio import Redis

from codehub.domain.resource_usage import HISTORY, SAMPLE_EVERY, UsageSample

KEY: Final = "codehub:usage:"
KEPT: Final = HISTORY // SAMPLE_EVERY + 1
_SAMPLE: Final = TypeAdapter(UsageSample)


@dataclass(frozen=True)
class UsageSamples:
    """Reader and writer of the lists."""

    redis: Redis

    async def append(self, samples: Mapping[str, UsageSample]) -> None:
        """Add a sample to each of these workspaces, in one round trip."""
        async with self.redis.pipeline(transaction=False) as pipeline:
            for workspace_id, sample in samples.items():
                key = KEY + workspace_id
                pipeline.rpush(key, _SAMPLE.dump_json(sample, exclude_none=True))
                pipeline.ltrim(key, -KEPT, -1)
                pipeline.expire(key, HISTORY + SAMPLE_EVERY)
            await pipeline.execute()

    async def read(self, workspace_ids: Collection[str]) -> dict[str, list[UsageSample]]:
        """Return the samples of these workspaces, the oldest first, in one round trip."""
        async with self.redis.pipeline(transaction=False) as pipeline:
            for workspace_id in workspace_ids:
                pipeline.lrange(KEY + workspace_id, -KEPT, -1)
            found = await pipeline.execute()
        return {workspace_id: _parse(items) for workspace_id, items in zip(workspace_ids, found, strict=True)}


def _parse(items: list[bytes | str]) -> list[UsageSample]:
    """Return the samples in the order of their times. A clock may have been set back."""
    found = []
    for item in items:
        try:
            found.append(_SAMPLE.validate_json(item))
        except ValidationError:
            continue
    return sorted(found, key=lambda sample: sample.at)
