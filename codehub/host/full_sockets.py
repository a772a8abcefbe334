"""Queues in front of Unix sockets that are full: TCP would wait in the kernel, these refuse at once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

FIRST_PAUSE: Final = 0.001
LONGEST_PAUSE: Final = 0.5

T = TypeVar("T")


class FullSockets:
    """Queues in front of full sockets. Only the first client of a queue tries to connect.

    A process that is stopped, or that accepts no connections on purpose, costs two attempts a second,
    however many clients wait for it.
    """

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._waiting: dict[str, int] = {}

    async def connect(self, path: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Call `attempt` until the socket at `path` has room, and return its result."""
        if path not in self._waiting:
            try:
                return await attempt()
            except BlockingIOError:
                pass  # it is full
        self._waiting[path] = self._waiting.get(path, 0) + 1
        try:
            async with self._locks.setdefault(path, asyncio.Lock()):
                return await _repeat(attempt)
        finally:
            self._waiting[path] -= 1
            if not self._waiting[path]:
                del self._waiting[path], self._locks[path]


async def _repeat(attempt: Callable[[], Awaitable[T]]) -> T:
    pause = FIRST_PAUSE
    while True:
        try:
            return await attempt()
        except BlockingIOError:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
