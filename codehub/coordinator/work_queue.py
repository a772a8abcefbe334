"""Work queue keyed by workspace: one worker per key, with duplicates merged while a key waits."""

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable

import structlog

logger = structlog.get_logger(__name__)

Handler = Callable[[str], Awaitable[float | None]]
"""Works on one key, and returns the seconds until it wants to be called again, or None."""

WORKERS = 64
"""Workspaces that are reconciled at once."""
FIRST_FAULT_DELAY = 1.0
MAX_FAULT_DELAY = 60.0


class WorkQueue:
    """Delay queue of keys. A key that is added while a worker has it is handled again afterwards."""

    def __init__(self, handler: Handler, workers: int = WORKERS) -> None:
        self._handler = handler
        self._free_workers = asyncio.Semaphore(workers)
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._order = itertools.count()
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._due_after_work: dict[str, float] = {}
        self._faults: dict[str, int] = {}
        self._changed = asyncio.Event()

    def add(self, key: str, delay: float = 0.0) -> None:
        """Schedule the key in `delay` seconds, unless it is already due earlier."""
        due = asyncio.get_running_loop().time() + delay
        if key in self._busy:
            self._due_after_work[key] = min(due, self._due_after_work.get(key, due))
            return
        if key in self._due and self._due[key] <= due:
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, next(self._order), key))
        self._changed.set()

    def waiting(self) -> tuple[int, float]:
        """Return how many keys are due and wait for a worker, and how long the first has waited."""
        now = asyncio.get_running_loop().time()
        due = [at for at in self._due.values() if at <= now]
        return len(due), now - min(due, default=now)

    def __len__(self) -> int:
        return len(self._due) + len(self._busy)

    async def run(self) -> None:
        """Start workers until cancelled; then cancel and await every worker."""
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
            await self._free_workers.acquire()
            del self._due[key]
            self._busy[key] = asyncio.create_task(self._work(key), name=f"reconcile {key}")

    async def _wait_for_next(self) -> None:
        self._changed.clear()
        timeout = None
        if self._heap:
            timeout = max(0.0, self._heap[0][0] - asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _work(self, key: str) -> None:
        delay: float | None = None
        try:
            delay = await self._handler(key)
            self._faults.pop(key, None)
        except Exception:
            faults = self._faults[key] = self._faults.get(key, 0) + 1
            delay = min(FIRST_FAULT_DELAY * 2 ** (faults - 1), MAX_FAULT_DELAY)
            logger.exception("work on a workspace failed", workspace_id=key, next_try_in=delay)
        finally:
            self._free_workers.release()
            self._busy.pop(key, None)
            self._requeue(key, delay)

    def _requeue(self, key: str, delay: float | None) -> None:
        due = self._due_after_work.pop(key, None)
        if due is not None:
            self.add(key, max(0.0, due - asyncio.get_running_loop().time()))
        if delay is not None:
            self.add(key, delay)
        self._changed.set()
