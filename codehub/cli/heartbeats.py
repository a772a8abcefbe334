"""Heartbeats of forked workers, in memory that they share with their parent."""

import asyncio
import mmap
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

BEAT_SECONDS: Final = 0.5
_COUNT: Final = struct.Struct("Q")


class Heartbeats:
    """One counter for each worker. A worker counts up; its parent finds the counters that stand still.

    The parent counts its own looks instead of reading a clock, so that a machine that was suspended, or a
    stopped process group, does not make every worker look dead when it goes on.
    """

    def __init__(self, workers: int, looks: float) -> None:
        self._memory = mmap.mmap(-1, workers * _COUNT.size)
        self._max_silent_checks = looks
        self._seen: dict[int, tuple[int, int]] = {}
        """The count last seen of each process, and how many looks ago it changed."""

    @asynccontextmanager
    async def beating(self, number: int) -> AsyncIterator[None]:
        """Count up beside the body, as long as the event loop runs."""
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
        """Look once at the workers, given by process id; return those without a beat for too many looks.

        A worker without any beat yet is still starting.
        """
        self._seen = {pid: self._look(pid, number) for pid, number in workers.items()}
        return [pid for pid, (count, looks) in self._seen.items() if count and looks >= self._max_silent_checks]

    def restart(self, number: int) -> None:
        """Forget the beats of a worker that ended."""
        self._write(number, 0)

    def _look(self, pid: int, number: int) -> tuple[int, int]:
        count = self._read(number)
        before, looks = self._seen.get(pid, (-1, 0))
        return count, (looks + 1 if count == before else 0)

    def _read(self, number: int) -> int:
        count: int = _COUNT.unpack_from(self._memory, number * _COUNT.size)[0]
        return count

    def _write(self, number: int, count: int) -> None:
        _COUNT.pack_into(self._memory, number * _COUNT.size, count)
