"""Histories in which programs run commands and hold leases, beside all other faults.

Every stop by the TTL is checked against what holds the workspace at that moment. At the end no
person uses anything: programs alone must not keep a workspace running.
"""

import asyncio
import contextlib
from datetime import datetime, timedelta
from typing import Any

from codehub.domain.problems import Problem
from codehub.domain.states import Phase
from codehub.domain.ttl import Expiry
from codehub.domain.workspace import Workspace
from tests.simulation.clock import VirtualLoop
from tests.simulation.database import STANDBY_TTL
from tests.simulation.history import LOST_AFTER, History
from tests.simulation.simulated_backend import SimulatedBackend, SimulatedLeaderDatabase

MAX_AWAKE = 400
SEE_EVERY = 20
"""Seconds between two times at which the access part sees the commands that run."""
LATE = 2 * LOST_AFTER
"""Seconds by which lost gateways and the rhythm of the TTL may delay the last stop."""


class UnluckyLeaderDatabase(SimulatedLeaderDatabase):
    """Database in which programs often begin something between a decision and its update."""

    async def apply_expiry(self, seen: Workspace, expiry: Expiry, now: datetime) -> bool:
        def begin() -> None:
            if self._process.chance.random() < 0.3:
                with contextlib.suppress(Problem):
                    begin_hold(self._process.chance, self._gate, seen.id)

        await self._read(begin)
        return await super().apply_expiry(seen, expiry, now)


class UnluckyBackend(SimulatedBackend):
    leader_database = UnluckyLeaderDatabase


def begin_hold(chance: Any, gate: Any, name: str) -> None:
    """Start a command or create a lease."""
    length = timedelta(seconds=chance.uniform(30, 240))
    if chance.random() < 0.6:
        timeout = timedelta(seconds=chance.uniform(5, 300)) if chance.random() < 0.5 else None
        gate.start_command(name, length, timeout)
    else:
        gate.create_lease(name, length)


class Programs(History):
    """Programs use workspaces for a long time, and persons seldom."""

    backend = UnluckyBackend
    fault_seconds = 500.0

    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        super().__init__(seed, loop)
        self.settings = self.settings.model_copy(update={"limits_max_awake_seconds": MAX_AWAKE})
        self.database.max_awake = timedelta(seconds=MAX_AWAKE)
        self._programs = self.fork("programs")

    async def _inject_faults(self) -> None:
        self._tasks = [asyncio.create_task(self._use()), asyncio.create_task(self._see_commands())]
        await super()._inject_faults()

    def _act_as_user(self) -> None:
        if self.chance.random() < 0.1:
            super()._act_as_user()

    async def _use(self) -> None:
        while True:
            await asyncio.sleep(self._programs.expovariate(0.25))
            running = [row.id for row in self.database.rows.values() if row.phase is Phase.RUNNING]
            with contextlib.suppress(Problem):
                if running and self._programs.random() < 0.8:
                    begin_hold(self._programs, self.gate, self._programs.choice(running))
                else:
                    self._end_a_lease()

    def _end_a_lease(self) -> None:
        held = [row for row in self.database.holds.leases if not row.removed]
        if held:
            self.gate.end_lease(self._programs.choice(held))

    async def _see_commands(self) -> None:
        """See what runs, as the access part does; it may be away for longer than five minutes."""
        while True:
            await asyncio.sleep(SEE_EVERY)
            if self._programs.random() < 0.005:
                self.world.record("---", "no access part runs")
                await asyncio.sleep(self._programs.uniform(60, 600))
            now = self.database.now()
            for command in self.database.holds.commands:
                if command.ended:
                    continue
                if now < command.ends_at:
                    command.seen_at = now
                else:
                    self.gate.end_command(command)

    async def _wait_until_settled(self) -> None:
        await self._wait_until_stopped()
        for task in self._tasks:
            task.cancel()
        await super()._wait_until_settled()

    async def _wait_until_stopped(self) -> None:
        """Wait until every workspace must have stopped, while only programs use them."""
        end = self.loop.time() + MAX_AWAKE + STANDBY_TTL + LATE
        while self.loop.time() < end:
            await asyncio.sleep(10)
            self._check_coordinators()
        for row in self.database.rows.values():
            if row.phase is Phase.RUNNING and row.desired_state.value == "RUNNING":
                self.world.fail(row.id, "programs keep it running for longer than they may")
