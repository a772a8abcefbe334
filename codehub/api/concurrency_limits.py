"""Bounded concurrency per key, so that one user cannot take the share of all others."""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from codehub.domain.problems import TooManyRequests


@dataclass
class _Lane:
    running: asyncio.Semaphore
    inside: int = field(default=0)


class Turns:
    """For each key, `at_once` calls run and `waiting` wait their turn; more are rejected at once."""

    def __init__(self, at_once: int, waiting: int, message: str, rejected: Callable[[], None]) -> None:
        self._at_once = at_once
        self._most = at_once + waiting
        self._message = message
        self._rejected = rejected
        self._lanes: dict[Hashable, _Lane] = {}

    @asynccontextmanager
    async def turn(self, key: Hashable) -> AsyncIterator[None]:
        lane = self._lanes.get(key) or _Lane(asyncio.Semaphore(self._at_once))
        if lane.inside >= self._most:
            self._rejected()
            raise TooManyRequests(self._message, retry_after=2)
        self._lanes[key] = lane
        lane.inside += 1
        try:
            async with lane.running:
                yield
        finally:
            lane.inside -= 1
            if not lane.inside:
                del self._lanes[key]
