"""Histories in which programs use much CPU, beside all other faults (ADR 0039).

Every stop by the TTL is checked against the CPU use that holds the workspace at that moment. At the
end some programs never stop using it: CPU use alone must not keep a workspace running.
"""

import asyncio
from datetime import timedelta

from codehub.domain.states import Phase
from tests.simulation.clock import VirtualLoop
from tests.simulation.database import STANDBY_TTL
from tests.simulation.history import LOST_AFTER, History
from tests.simulation.world import CpuLoad

MAX_AWAKE = 900
AWAKE_CPU_PERCENT = 50
WINDOW = 600
"""Seconds over which CPU use is averaged. A program that has ended holds for at most as long."""
SAMPLED_WITHIN = 120
LATE = 2 * LOST_AFTER
"""Seconds by which lost gateways and the rhythm of the TTL may delay the last stop."""


class CpuLoads(History):
    """Programs use CPU in workspaces, and persons seldom use them."""

    fault_seconds = 700.0

    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        super().__init__(seed, loop)
        changes = {"limits_max_awake_seconds": MAX_AWAKE, "awake_cpu_percent": AWAKE_CPU_PERCENT}
        self.settings = self.settings.model_copy(update=changes)
        self.database.max_awake = timedelta(seconds=MAX_AWAKE)
        self._programs = self.fork("programs")

    async def _inject_faults(self) -> None:
        self._loading = asyncio.create_task(self._begin_loads())
        await super()._inject_faults()
        self._loading.cancel()

    def _act_as_user(self) -> None:
        if self.chance.random() < 0.1:
            super()._act_as_user()

    async def _begin_loads(self) -> None:
        while True:
            self._begin_load(self._programs.uniform(60, 300))
            await asyncio.sleep(self._programs.expovariate(0.2))

    def _begin_load(self, seconds: float) -> None:
        running = [row.id for row in self.database.rows.values() if row.phase is Phase.RUNNING]
        if running:
            name, now = self._programs.choice(running), self.loop.time()
            load = CpuLoad(now, now + seconds, self._programs.uniform(0.2, 8))
            self.world.cpu_loads.setdefault(name, []).append(load)
            self.world.record(name, f"a program uses {load.cores:.1f} cores for {seconds:.0f} s")

    async def _wait_until_settled(self) -> None:
        await self._wait_until_stopped()
        await super()._wait_until_settled()

    async def _wait_until_stopped(self) -> None:
        """Wait until every workspace must have stopped: those without a load earlier than the others."""
        begin = self.loop.time()
        for _ in range(5):
            self._begin_load(1e9)
        await self._wait_until(begin + 300 + WINDOW + SAMPLED_WITHIN + STANDBY_TTL + LATE)
        endless = {name for name, loads in self.world.cpu_loads.items() if loads[-1].end > 1e9}
        self._check_stopped(self.database.rows.keys() - endless, "although it uses no CPU")
        await self._wait_until(begin + MAX_AWAKE + SAMPLED_WITHIN + STANDBY_TTL + LATE)
        self._check_stopped(endless, "for longer than CPU use may keep it awake")

    async def _wait_until(self, end: float) -> None:
        while self.loop.time() < end:
            await asyncio.sleep(10)
            self._check_coordinators()

    def _check_stopped(self, names: "set[str]", why: str) -> None:
        for name in sorted(names):
            row = self.database.rows[name]
            if row.phase is Phase.RUNNING and row.desired_state.value == "RUNNING":
                self.world.fail(name, f"keeps running {why}")
