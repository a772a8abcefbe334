"""A work queue keyed by workspace: one worker a key, de-duplicated while it waits."""

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable

import structlog

logger = structlog.get_logger(__name__)

Handler = Callable[[str], Awaitable[float | None]]
"""Works on one key; returns in how many seconds it wants to be called again, or None."""

WORKERS = 64
"""Workspaces that are worked on at once."""
FAULT_DELAY = 1.0
LONGEST_FAULT_DELAY = 60.0


class WorkQueue:
    """Keys wait for their time; a key that is added while it is worked on is worked on again after."""

    def __init__(self, handler: Handler, workers: int = WORKERS) -> None:
        self._handler = handler
        self._places = asyncio.Semaphore(workers)
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._order = itertools.count()
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._again: dict[str, float] = {}
        self._faults: dict[str, int] = {}
        self._stirred = asyncio.Event()

    def add(self, key: str, delay: float = 0.0) -> None:
        """Have the key worked on within `delay` seconds; an earlier appointment stands."""
        due = asyncio.get_running_loop().time() + delay
        if key in self._busy:
            self._again[key] = min(due, self._again.get(key, due))
            return
        if key in self._due and self._due[key] <= due:
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, next(self._order), key))
        self._stirred.set()

    def waiting(self) -> tuple[int, float]:
        """Return how many keys wait although their time has come, and for how long the first has."""
        now = asyncio.get_running_loop().time()
        due = [at for at in self._due.values() if at <= now]
        return len(due), now - min(due, default=now)

    def __len__(self) -> int:
        return len(self._due) + len(self._busy)

    async def run(self) -> None:
        """Work until cancelled; then every worker is cancelled and awaited."""
        try:
            while True:
                await self._start_due()
                await self._wait_for_next()
        finally:
            for task in self._busy.values():
                task.cancel()
            await asyncio.gather(*self._busy.values(), return_exceptions=True)

    async def _start_due(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            if self._due.get(key) != due:
                continue
            await self._places.acquire()
            del self._due[key]
            self._busy[key] = asyncio.create_task(self._work(key), name=f"reconcile {key}")

    async def _wait_for_next(self) -> None:
        self._stirred.clear()
        timeout = None
        if self._heap:
            timeout = max(0.0, self._heap[0][0] - asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(timeout):
                await self._stirred.wait()
        except TimeoutError:
            return

    async def _work(self, key: str) -> None:
        delay: float | None = None
        try:
            delay = await self._handler(key)
            self._faults.pop(key, None)
        except Exception:
            faults = self._faults[key] = self._faults.get(key, 0) + 1
            delay = min(FAULT_DELAY * 2 ** (faults - 1), LONGEST_FAULT_DELAY)
            logger.exception("work on a workspace failed", workspace_id=key, next_try_in=delay)
        finally:
            self._places.release()
            self._busy.pop(key, None)
            self._requeue(key, delay)

    def _requeue(self, key: str, delay: float | None) -> None:
        again = self._again.pop(key, None)
        if again is not None:
            self.add(key, max(0.0, again - asyncio.get_running_loop().time()))
        if delay is not None:
            self.add(key, delay)
        self._stirred.set()
