"""Usage sampler: measures running workspaces once a minute (ADR 0039).

The samples go to Redis, for the API. CPU use above what the owner has set keeps a workspace awake;
that is a fact in the database, with an end, like commands and leases (ADR 0037).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog
from redis.exceptions import RedisError

from codehub.coordinator.leader_interfaces import LeaderDatabase, UsageHistory
from codehub.database.leader_database import RowLocked
from codehub.domain.awake import CpuHold
from codehub.domain.disk import FreeSpace
from codehub.domain.observation import Unknown
from codehub.domain.resource_usage import (
    ResourceUsage,
    UsageSample,
    needed_for_average,
    next_cpu_hold,
    to_sample,
)
from codehub.domain.running_workspace import RunningWorkspace
from codehub.domain.ttl import TtlDefaults, awake_cpu_percent
from codehub.runtimes.base import Runtime, RuntimeUnobservable

logger = structlog.get_logger(__name__)

BUDGET: Final = timedelta(seconds=10)
"""Time for the measurements of a tick. What is left out comes first in the next one."""
_NEVER: Final = datetime.min.replace(tzinfo=UTC)


class UsageSampler:
    """Sampler of one leader. A new leader continues with the samples of the one before."""

    def __init__(
        self,
        database: LeaderDatabase,
        runtime: Runtime,
        history: UsageHistory,
        free_space: Callable[[], FreeSpace | None],
        defaults: TtlDefaults,
        clock: Callable[[], datetime],
    ) -> None:
        self._database = database
        self._runtime = runtime
        self._history = history
        self._free_space = free_space
        self._defaults = defaults
        self._clock = clock
        self._recent: dict[str, list[UsageSample]] = {}
        """The samples that averages need, by workspace."""
        self._tried_at: dict[str, datetime] = {}
        """When each workspace was last measured, or could not be."""
        self._has_history = False
        """Whether the samples of the last leader have been read."""

    async def tick(self) -> None:
        """Measure what runs; then let high CPU use begin, go on or stop keeping workspaces awake."""
        running = {item.id: item for item in await self._database.running_workspaces()}
        self._recent = {name: samples for name, samples in self._recent.items() if name in running}
        self._tried_at = {name: at for name, at in self._tried_at.items() if name in running}
        if running:
            measured = await self._measure(running)
            await self._save(measured)
            await self._update_holds(running, measured.keys())
        for workspace_id in await self._database.cpu_holds_not_measured(self._clock()):
            await self._end(workspace_id)

    async def _measure(self, running: Mapping[str, RunningWorkspace]) -> dict[str, UsageSample]:
        """Return a new sample of each workspace that could be measured."""
        usage = await self._read_usage(sorted(running, key=lambda name: self._tried_at.get(name, _NEVER)))
        await self._read_history(running)
        now, free = self._clock(), self._free_space()
        samples = {
            name: to_sample(found, running[name].home, None if free is None else free.bytes, now)
            for name, found in usage.items()
        }
        for name, sample in samples.items():
            self._recent[name] = needed_for_average([*self._recent.get(name, ()), sample])
        return samples

    async def _read_usage(self, workspace_ids: Sequence[str]) -> dict[str, ResourceUsage]:
        try:
            found = await self._runtime.resource_usage(workspace_ids, BUDGET.total_seconds())
        except RuntimeUnobservable as error:
            logger.warning("the resources of workspaces cannot be measured", error=error.message)
            return {}
        now = self._clock()
        for name, usage in found.items():
            self._tried_at[name] = now
            if isinstance(usage, Unknown):
                logger.warning(
                    "the resources of a workspace cannot be measured", workspace_id=name, error=usage.message
                )
        return {name: usage for name, usage in found.items() if not isinstance(usage, Unknown)}

    async def _read_history(self, running: Mapping[str, RunningWorkspace]) -> None:
        """Read the samples of the last leader once. Until Redis answers, averages lack them."""
        if self._has_history:
            return
        try:
            earlier = await self._history.read(list(running))
        except (RedisError, OSError) as error:
            logger.warning("earlier samples of workspaces cannot be read yet", error=str(error))
            return
        self._has_history = True
        for name, samples in earlier.items():
            own = self._recent.get(name, [])
            before = [sample for sample in samples if not own or sample.at < own[0].at]
            if joined := [*before, *own]:
                self._recent[name] = joined

    async def _save(self, samples: Mapping[str, UsageSample]) -> None:
        if not samples:
            return
        try:
            await self._history.append(samples)
        except (RedisError, OSError) as error:
            logger.warning("samples of workspaces are not kept", error=str(error))

    async def _update_holds(self, running: Mapping[str, RunningWorkspace], measured: Iterable[str]) -> None:
        renewed: dict[str, CpuHold] = {}
        for name in measured:
            before = running[name].cpu_hold
            if before is not None and before.held_until <= self._recent[name][-1].at:
                before = None  # it has ended already
            above = awake_cpu_percent(running[name].awake_cpu_percent, self._defaults)
            after = next_cpu_hold(before, self._recent[name], above)
            if before is None and after is not None:
                await self._begin(name, after)
            elif before is not None and after is None:
                await self._end(name)
            elif before != after and after is not None:
                renewed[name] = after
        if renewed:
            await self._database.renew_cpu_holds(renewed)

    async def _begin(self, workspace_id: str, hold: CpuHold) -> None:
        try:
            await self._database.begin_cpu_hold(workspace_id, hold)
        except RowLocked as error:
            logger.warning("CPU use does not keep a workspace awake yet", id=workspace_id, error=str(error))

    async def _end(self, workspace_id: str) -> None:
        try:
            await self._database.end_cpu_hold(workspace_id, self._clock())
        except RowLocked as error:
            logger.warning("CPU use still keeps a workspace awake", id=workspace_id, error=str(error))
