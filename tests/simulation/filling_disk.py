"""Histories in which homes fill the disk, and the watchdog must keep space for the database."""

import asyncio
import contextlib
from datetime import timedelta

from codehub.domain.disk import Resource
from codehub.domain.problems import Problem
from codehub.domain.states import DesiredState, Phase
from codehub.domain.workspace import Workspace
from tests.simulation.clock import VirtualLoop
from tests.simulation.history import History
from tests.simulation.world import PLENTY, Home

CAPACITY, RESERVE = 60_000, 20_000
GRACE = 20
SOON = 90.0
"""Seconds below the reserve within which a workspace is stopped, despite faults of coordinators."""
STALE = 15.0
"""Seconds by which the watchdog's data may be out of date."""


class FillingDisk(History):
    """History in which homes use up `resource`, but not the other one."""

    fault_seconds = 400.0
    resource = Resource.BYTES

    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        super().__init__(seed, loop)
        self.settings = self.settings.model_copy(
            update={
                "disk_reserve_bytes": RESERVE if self.resource is Resource.BYTES else 0,
                "disk_reserve_files": RESERVE if self.resource is Resource.FILES else 0,
                "disk_grace_seconds": GRACE,
                "coordinator_disk_interval": 2,
                "ttl_standby_seconds": 0,
            }
        )
        self._limit(CAPACITY)
        self.database.before_disk_stop = self._check_stop
        self._pressure = self.fork("pressure")
        self._rates: dict[str, int] = {}
        self._below_since: float | None = None
        self._low_at = -SOON
        self._stopped_at = 0.0
        self.stops = 0

    def _limit(self, capacity: int) -> None:
        if self.resource is Resource.BYTES:
            self.world.capacity = capacity
        else:
            self.world.inodes = capacity

    async def _inject_faults(self) -> None:
        growing = asyncio.create_task(self._grow())
        try:
            await super()._inject_faults()
        finally:
            growing.cancel()

    def _end_faults(self) -> None:
        self._limit(PLENTY)
        super()._end_faults()

    def _recover_after_faults(self, name: str) -> None:
        """Stop a workspace first: no TTL frees space within the limits here."""
        for row in self._running()[:1]:
            with contextlib.suppress(Problem):
                self.gate.set_desired_state(row.id, DesiredState.STANDBY)
        super()._recover_after_faults(name)

    def _act_as_user(self) -> None:
        name = self.chance.choice(list(self.database.rows))
        try:
            self.gate.set_desired_state(name, DesiredState.RUNNING)
        except Problem as problem:
            self.world.record(name, f"is rejected: {problem.code}")

    def _disturb(self) -> None:
        if self.chance.random() < 0.1:
            self._kill_coordinator()
        else:
            self.chance.choice((self._kill_job, self._end_container))()

    async def _grow(self) -> None:
        """Let homes grow: one in five quickly, the others slowly."""
        while True:
            await asyncio.sleep(1)
            for name, container in list(self.world.containers.items()):
                if container.has_started(self.loop.time()) and not container.home.removed_by_others:
                    hog = self._pressure.random() < 0.2
                    self._add_to(container.home, self._rates.setdefault(name, 20 if hog else 1))
            self._check_disk()

    def _add_to(self, home: Home, amount: int) -> None:
        if self.resource is Resource.BYTES:
            home.size += amount
        else:
            home.entries += amount

    def _free(self) -> int:
        free = self.world.free_space().of(self.resource)
        assert free is not None
        return free

    def _check_disk(self) -> None:
        free, now = self._free(), self.loop.time()
        if free <= 0:
            self.world.fail("---", "the disk is full and the database stops")
        for row in self.database.rows.values():
            if row.error_reason is not None and "disk space" in (row.error_message or ""):
                self.world.fail(row.id, "a full disk counts as an error of the workspace")
        if free < RESERVE:
            self._low_at = now
        covered = free + self._to_come() >= RESERVE and free * 4 >= RESERVE
        if covered or not any(self._size(row) > RESERVE // 8 for row in self._running()):
            self._below_since = None
            return
        since = self._below_since = self._below_since if self._below_since is not None else now
        if now - max(since, self._stopped_at) > SOON:
            self.world.fail("---", "the disk stays below its reserve and no workspace is stopped")

    def _check_stop(self, row: Workspace) -> None:
        """Check that each workspace may keep at least an even share of the space."""
        self.stops += 1
        free, now = self._free(), self.loop.time()
        self._stopped_at = now
        record = self.database.homes.get(row.id)
        if record is None or record.warned_at is None:
            self.world.fail(row.id, "is stopped for the disk without a warning")
        elif self.database.now() - record.warned_at < timedelta(seconds=0.5):
            self.world.fail(row.id, "is stopped for the disk at once after its warning")
        if now - self._low_at > STALE:
            self.world.fail(row.id, "is stopped although the reserve is free")
        running = self._running()
        even = (free + sum(self._size(item) for item in running) - RESERVE) / len(running)
        if free * 4 >= RESERVE and self._size(row) <= even:
            self.world.fail(row.id, f"has {self._size(row)}, an even share is {even:.0f}, and it is stopped")
        if self._size(row) < RESERVE // 8:
            self.world.fail(row.id, "has next to nothing and is stopped")

    def _running(self) -> list[Workspace]:
        return [
            row
            for row in self.database.rows.values()
            if row.phase is Phase.RUNNING and row.desired_state is DesiredState.RUNNING
        ]

    def _to_come(self) -> int:
        stopped = [name for name, record in self.database.homes.items() if record.stopped_at is not None]
        return sum(
            self._size(self.database.rows[name])
            for name in stopped
            if self.database.rows[name].desired_state is not DesiredState.RUNNING
        )

    def _size(self, row: Workspace) -> int:
        home = self.world.disk(row.id).home
        if home is None:
            return 0
        return home.size if self.resource is Resource.BYTES else home.entries


class FillingInodes(FillingDisk):
    resource = Resource.FILES
