"""A simulated process, which can be killed, paused and resumed between any two of its calls."""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from codehub.database.leader_database import VersionConflict
from codehub.database.leadership import StaleLeader
from codehub.domain.observation import Unknown
from codehub.runtimes.base import RuntimeFailure
from codehub.storage.errors import StorageProblem
from tests.simulation.world import World

T = TypeVar("T")


class Killed(BaseException):
    """kill -9: nothing that the process does has an effect afterwards, not even its cleanup."""


@dataclass
class Faults:
    """Rate of calls that fail, before or after they have had their effect."""

    rate: float = 0.0


@dataclass(eq=False)
class Session:
    """A connection to the database, which ends with its process."""

    process: "Process"


@dataclass(eq=False)
class Process:
    name: str
    world: World
    chance: random.Random
    faults: Faults
    alive: bool = True

    def __post_init__(self) -> None:
        self.resumed = asyncio.Event()
        self.resumed.set()

    def new_session(self) -> Session:
        return Session(self)

    async def read(self, read: Callable[[], T], make_error: Callable[[], Exception], component: str) -> T:
        """Make a call that changes nothing."""
        await self._pause()
        if self.world.is_down(component) or self.chance.random() < self.faults.rate:
            raise make_error()
        return read()

    def hide_some(self, facts: Mapping[str, T]) -> dict[str, T | Unknown]:
        """Return a bulk observation in which single facts are unobservable."""
        if not self.faults.rate:
            return dict(facts)
        hidden = Unknown("It cannot be read.")
        return {
            name: hidden if self.chance.random() < self.faults.rate else fact for name, fact in facts.items()
        }

    async def write(self, write: Callable[[], T], make_error: Callable[[], Exception], component: str) -> T:
        """Make a call that has an effect.

        It may fail before or after its effect. A cancelled call may still have its effect later.
        """
        try:
            await self._pause()
        except asyncio.CancelledError:
            self._maybe_write_late(write)
            raise
        luck = self.chance.random()
        if self.world.is_down(component) or luck < self.faults.rate / 2:
            raise make_error()
        result = write()
        await self._pause()
        if luck > 1 - self.faults.rate / 2:
            raise make_error()
        return result

    async def _pause(self) -> None:
        luck = self.chance.random()
        if luck < 0.4:
            await asyncio.sleep(0.2 * luck * luck)
        elif luck > 0.998 and self.faults.rate:
            await asyncio.sleep(self.chance.uniform(1, 40))
        if not self.resumed.is_set():
            await self.resumed.wait()
        if not self.alive:
            raise Killed

    def _maybe_write_late(self, write: Callable[[], object]) -> None:
        """Perhaps finish a cancelled call later, because a thread cannot be cancelled."""
        if self.alive and self.chance.random() < 0.5:
            self.world.loop.call_later(self.chance.uniform(0, 5), self._write_late, write)

    def _write_late(self, write: Callable[[], object]) -> None:
        if not self.alive:
            return
        try:
            write()
        except (StorageProblem, RuntimeFailure, OSError, StaleLeader, VersionConflict) as problem:
            self.world.record("---", f"a late call failed: {problem!r}")

    def kill(self) -> None:
        self.alive = False
        self.resumed.set()
        for disk in self.world.disks.values():
            if disk.lock is self:
                disk.lock = None
