"""Bounded concurrency per key, so that one user cannot take the share of all others."""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from codehub.domain.problems import TooManyRequests


@dataclass
class _KeyState:
    slots: asyncio.Semaphore
    admitted: int = 0
    """Calls that run or wait."""


class ConcurrencyLimit:
    """Semaphore per key with a bounded queue: `at_once` calls run, `waiting` wait."""

    def __init__(
        self, at_once: int, waiting: int, message: str, on_reject: Callable[[], object] = lambda: None
    ) -> None:
        self._at_once = at_once
        self._max_admitted = at_once + waiting
        self._message = message
        self._on_reject = on_reject
        self._keys: dict[Hashable, _KeyState] = {}

    @asynccontextmanager
    async def slot(self, key: Hashable) -> AsyncIterator[None]:
        state = self._keys.get(key) or _KeyState(asyncio.Semaphore(self._at_once))
        if state.admitted >= self._max_admitted:
            self._on_reject()
            raise TooManyRequests(self._message, retry_after=2)
        self._keys[key] = state
        state.admitted += 1
        try:
            async with state.slots:
                yield
        finally:
            state.admitted -= 1
            if not state.admitted:
                del self._keys[key]
