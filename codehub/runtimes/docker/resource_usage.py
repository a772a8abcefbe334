"""Resources that containers use, from the engine's statistics (ADR 0039).

The engine's answers come from outside: a value that is missing or no number becomes Unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from codehub.domain.observation import Unknown
from codehub.domain.resource_usage import Amount, CpuTime, ResourceUsage, plausible_count
from codehub.runtimes.docker.engine import ContainerSummary, Engine, EngineRefusal, EngineUnavailable

AT_ONCE: Final = 4
"""Requests for statistics at a time. Each costs the engine some milliseconds of CPU time."""
_SECONDS: Final = 3.0
"""The engine may hang on one container. That must not use up the time for the others."""
_NO_LIMIT: Final = 1 << 60


class ResourceMeter:
    """Reader of the statistics of containers. It keeps their caps, which do not change."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cores: dict[str, float | None] = {}

    async def measure(
        self, containers: Iterable[ContainerSummary], within: float
    ) -> dict[str, ResourceUsage | Unknown]:
        """Return what these containers use, in this order, until `within` seconds have passed."""
        found: dict[str, ResourceUsage | Unknown] = {}
        waiting = iter(containers)

        async def work() -> None:
            for container in waiting:
                found[container.workspace_id] = await self._measure_one(container.id)

        try:
            async with asyncio.timeout(within), asyncio.TaskGroup() as tasks:
                for _ in range(AT_ONCE):
                    tasks.create_task(work())
        except TimeoutError:
            pass  # the rest is left out
        return found

    def forget_others(self, container_ids: set[str]) -> None:
        """Forget the caps of all containers but these."""
        self._cores = {name: cores for name, cores in self._cores.items() if name in container_ids}

    async def _measure_one(self, container_id: str) -> ResourceUsage | Unknown:
        try:
            if container_id not in self._cores:
                self._cores[container_id] = cores_of(await self._engine.inspect(container_id, _SECONDS))
            stats = await self._engine.stats(container_id, _SECONDS)
        except (EngineUnavailable, EngineRefusal, ValueError):
            return Unknown("The Docker engine did not report what this workspace uses.")
        return usage_of(container_id, stats, self._cores[container_id])


def cores_of(inspected: object) -> float | None:
    """Return the cap in cores, or None without a cap."""
    return (_count(inspected, "HostConfig", "NanoCpus") or 0) / 1e9 or None


def usage_of(container_id: str, stats: object, cores: float | None) -> ResourceUsage:
    """Return what an answer of the engine shows."""
    return ResourceUsage(container_id, _cpu(stats, cores), _memory(stats), _processes(stats))


def _cpu(stats: object, cores: float | None) -> CpuTime | Unknown:
    nanoseconds = _count(stats, "cpu_stats", "cpu_usage", "total_usage")
    if nanoseconds is None:
        return Unknown("The Docker engine reports no CPU time of this workspace.")
    return CpuTime(nanoseconds / 1e9, cores)


def _memory(stats: object) -> Amount | Unknown:
    """Return the memory without files that the kernel drops as soon as it needs the memory."""
    used = _count(stats, "memory_stats", "usage")
    if used is None:
        return Unknown("The Docker engine reports no memory of this workspace.")
    names = ("total_inactive_file", "inactive_file")  # of version 1 of control groups, and of version 2
    cached = [_count(stats, "memory_stats", "stats", name) for name in names]
    reclaimable = next((count for count in cached if count is not None), 0)
    return Amount(max(0, used - reclaimable), _limit(stats, "memory_stats", "limit"))


def _processes(stats: object) -> Amount | Unknown:
    count = _count(stats, "pids_stats", "current")
    if count is None:
        return Unknown("The Docker engine reports no processes of this workspace.")
    return Amount(count, _limit(stats, "pids_stats", "limit"))


def _limit(stats: object, *names: str) -> int | None:
    limit = _count(stats, *names)
    return limit if limit is not None and 0 < limit < _NO_LIMIT else None


def _count(value: object, *names: str) -> int | None:
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return plausible_count(value)
