"""A simulated coordinator process: it can be killed, stopped and continued between any two of its calls."""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from codehub.database.controller_writes import VersionConflict
from codehub.database.leadership import StaleLeader
from codehub.domain.observation import Unknown
from codehub.runtimes.base import RuntimeFailure
from codehub.storage.errors import StorageProblem
from tests.simulation.reality import Reality

T = TypeVar("T")


class Killed(BaseException):
    """kill -9: nothing of the process has any effect any more, cleaning up included."""


@dataclass
class Faults:
    """How often a call fails, before or after it has acted."""

    rate: float = 0.0


@dataclass(eq=False)
class Session:
    """A connection to the database; it ends with its process."""

    process: "Process"


@dataclass(eq=False)
class Process:
    name: str
    reality: Reality
    chance: random.Random
    faults: Faults
    alive: bool = True

    def __post_init__(self) -> None:
        self.going = asyncio.Event()
        self.going.set()

    def new_session(self) -> Session:
        return Session(self)

    async def look(self, look: Callable[[], T], trouble: Callable[[], Exception], what: str) -> T:
        """A call that changes nothing."""
        await self._pause()
        if self.reality.is_down(what) or self.chance.random() < self.faults.rate:
            raise trouble()
        return look()

    def partly_hidden(self, facts: Mapping[str, T]) -> dict[str, T | Unknown]:
        """What a look at all shows when single ones cannot be looked at."""
        if not self.faults.rate:
            return dict(facts)
        hidden = Unknown("It cannot be read.")
        return {
            name: hidden if self.chance.random() < self.faults.rate else fact for name, fact in facts.items()
        }

    async def act(self, act: Callable[[], T], trouble: Callable[[], Exception], what: str) -> T:
        """A call that acts: it may fail before, or after; and once begun it may act although nobody waits."""
        try:
            await self._pause()
        except asyncio.CancelledError:
            self._perhaps_late(act)
            raise
        luck = self.chance.random()
        if self.reality.is_down(what) or luck < self.faults.rate / 2:
            raise trouble()
        result = act()
        await self._pause()
        if luck > 1 - self.faults.rate / 2:
            raise trouble()
        return result

    async def _pause(self) -> None:
        luck = self.chance.random()
        if luck < 0.4:
            await asyncio.sleep(0.2 * luck * luck)
        elif luck > 0.998 and self.faults.rate:
            await asyncio.sleep(self.chance.uniform(1, 40))
        if not self.going.is_set():
            await self.going.wait()
        if not self.alive:
            raise Killed

    def _perhaps_late(self, act: Callable[[], object]) -> None:
        """A thread cannot be cancelled: what it was told to do is done later, unless the process dies."""
        if self.alive and self.chance.random() < 0.5:
            self.reality.loop.call_later(self.chance.uniform(0, 5), self._late, act)

    def _late(self, act: Callable[[], object]) -> None:
        if not self.alive:
            return
        try:
            act()
        except (StorageProblem, RuntimeFailure, OSError, StaleLeader, VersionConflict) as problem:
            self.reality.tell("---", f"late, and nobody hears it: {problem!r}")

    def kill(self) -> None:
        self.alive = False
        self.going.set()
        for disk in self.reality.disks.values():
            if disk.lock is self:
                disk.lock = None
