"""Heartbeats of forked workers, in memory that they share with their parent."""

import asyncio
import mmap
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

BEAT_SECONDS: Final = 0.5
START_FACTOR: Final = 5
"""How many times as long a new process may take until it first shows that it runs."""
_COUNT: Final = struct.Struct("Q")


class Heartbeats:
    """One counter for each worker.

    A worker counts up, and its parent finds counters that do not change. The parent counts its
    checks instead of reading a clock. So workers do not all seem dead after the machine was
    suspended, or after the process group was stopped.
    """

    def __init__(self, workers: int, max_silent_checks: float) -> None:
        self._memory = mmap.mmap(-1, workers * _COUNT.size)
        self._max_silent_checks = max_silent_checks
        self._last: dict[int, tuple[int, int]] = {}
        """The last count of each process, and for how many checks it has not changed."""

    @asynccontextmanager
    async def beating(self, number: int) -> AsyncIterator[None]:
        """Count up while the body runs, as long as the event loop runs."""
        beat = asyncio.create_task(self._beat(number))
        try:
            yield
        finally:
            beat.cancel()
            await asyncio.gather(beat, return_exceptions=True)

    async def _beat(self, number: int) -> None:
        while True:
            self._write(number, self._read(number) + 1)
            await asyncio.sleep(BEAT_SECONDS)

    def find_silent(self, workers: Mapping[int, int]) -> list[int]:
        """Check the workers, given by process id, once.

        Return those without a beat for too many checks. A worker that has not beaten yet may take
        longer: it is starting.
        """
        self._last = {pid: self._check(pid, number) for pid, number in workers.items()}
        return [
            pid
            for pid, (count, silent) in self._last.items()
            if silent >= self._max_silent_checks * (1 if count else START_FACTOR)
        ]

    def restart(self, number: int) -> None:
        """Forget the beats of a worker that ended."""
        self._write(number, 0)

    def _check(self, pid: int, number: int) -> tuple[int, int]:
        count = self._read(number)
        before, silent = self._last.get(pid, (-1, 0))
        return count, (silent + 1 if count == before else 0)

    def _read(self, number: int) -> int:
        count: int = _COUNT.unpack_from(self._memory, number * _COUNT.size)[0]
        return count

    def _write(self, number: int, count: int) -> None:
        _COUNT.pack_into(self._memory, number * _COUNT.size, count)
