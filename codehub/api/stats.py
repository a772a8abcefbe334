"""`/workspaces/{id}/stats`: what a workspace uses, now and over the last hour."""

from datetime import datetime
from itertools import pairwise

import structlog
from fastapi import APIRouter
from pydantic import BaseModel
from redis.exceptions import RedisError

from codehub.api.permissions import WorkspaceId, find_workspace
from codehub.api.services import Now, Services, Shared
from codehub.asgi.callers import ReadCaller
from codehub.bus.usage_samples import UsageSamples
from codehub.database.workspace_queries import DetailedWorkspace
from codehub.domain.conditions import holds
from codehub.domain.resource_usage import (
    HISTORY,
    SAMPLE_EVERY,
    UsageSample,
    average_cpu_percent,
    cpu_percent,
    current_sample,
)
from codehub.domain.states import ConditionName, Phase

logger = structlog.get_logger(__name__)

router = APIRouter(prefix="/workspaces/{workspace_id}/stats", tags=["workspaces"])


class CpuView(BaseModel):
    """CPU use in percent of one core: 150 is one and a half cores.

    `percent` is that since the sample before, `average_percent` that of the last ten minutes, and
    `percent_of_cap` a share of `cores`, the cap of the workspace. `cores` is null without a cap. If
    `percent` is null, `reason` says why.
    """

    percent: float | None
    percent_of_cap: float | None
    average_percent: float | None
    cores: float | None
    reason: str | None


class MemoryView(BaseModel):
    """Memory in use, without files that are only cached. `limit_bytes` is null without a cap."""

    used_bytes: int | None
    limit_bytes: int | None
    reason: str | None


class ProcessesView(BaseModel):
    """Number of processes and of their threads, as the cap counts them. `limit` is null without a cap."""

    count: int | None
    limit: int | None
    reason: str | None


class HomeStatsView(BaseModel):
    """Size of the home as last measured, and how much more it may take now.

    Without `complete`, it is at least this large. `free_bytes` is what is left of its quota, or of the
    disk if that is less. If a number is null, `reason` says why.
    """

    bytes: int | None
    free_bytes: int | None
    complete: bool | None
    measured_at: datetime | None
    reason: str | None


class UsageSampleView(BaseModel):
    """One sample. A number is null if it could not be measured then."""

    at: datetime
    cpu_percent: float | None
    memory_bytes: int | None
    processes: int | None
    home_bytes: int | None
    home_free_bytes: int | None


class StatsView(BaseModel):
    """What a workspace uses. `measured_at` is null if it does not run, or was not measured lately."""

    measured_at: datetime | None
    interval_seconds: int
    cpu: CpuView
    memory: MemoryView
    processes: ProcessesView
    home: HomeStatsView
    samples: list[UsageSampleView]


@router.get("")
async def get_stats(workspace_id: WorkspaceId, caller: ReadCaller, services: Shared, now: Now) -> StatsView:
    """Return CPU, memory, processes and the home of a workspace: now, and samples of the last hour."""
    async with services.engine.connect() as conn:
        detailed = await find_workspace(conn, caller, workspace_id)
    samples = await _read_samples(services, workspace_id)
    if samples is None:
        return _view(
            detailed, [], now, "Redis, which keeps the measurements, does not answer. Try again later."
        )
    return _view(detailed, [sample for sample in samples if now - sample.at <= HISTORY], now)


async def _read_samples(services: Services, workspace_id: str) -> list[UsageSample] | None:
    """Return the samples, or None if Redis does not answer."""
    try:
        return (await UsageSamples(services.redis).read([workspace_id]))[workspace_id]
    except (RedisError, OSError) as error:
        logger.warning("samples of workspaces cannot be read", error=str(error))
        return None


def _view(
    detailed: DetailedWorkspace, samples: list[UsageSample], now: datetime, unknown: str | None = None
) -> StatsView:
    workspace = detailed.workspace
    running_since = workspace.phase_changed_at if workspace.phase is Phase.RUNNING else None
    current = current_sample(samples, running_since, now)
    reason = unknown or (current if isinstance(current, str) else None)
    newest = None if isinstance(current, str) else current
    return StatsView(
        measured_at=None if newest is None else newest.at,
        interval_seconds=int(SAMPLE_EVERY.total_seconds()),
        cpu=_cpu(newest, samples, reason),
        memory=MemoryView(
            used_bytes=None if newest is None else newest.memory_bytes,
            limit_bytes=None if newest is None else newest.memory_limit,
            reason=reason if newest is None else newest.memory_reason,
        ),
        processes=ProcessesView(
            count=None if newest is None else newest.processes,
            limit=None if newest is None else newest.processes_limit,
            reason=reason if newest is None else newest.processes_reason,
        ),
        home=_home(detailed, newest, reason),
        samples=_sample_views(samples),
    )


def _cpu(newest: UsageSample | None, samples: list[UsageSample], reason: str | None) -> CpuView:
    if newest is None or newest.cpu_seconds is None:
        why = reason if newest is None else newest.cpu_reason
        cores = None if newest is None else newest.cpu_cores
        return CpuView(percent=None, percent_of_cap=None, average_percent=None, cores=cores, reason=why)
    percent = cpu_percent(samples[-2], newest) if len(samples) > 1 else None
    return CpuView(
        percent=_rounded(percent),
        percent_of_cap=None
        if percent is None or not newest.cpu_cores
        else _rounded(percent / newest.cpu_cores),
        average_percent=_rounded(average_cpu_percent(samples)),
        cores=newest.cpu_cores,
        reason=None if percent is not None else "CPU use is known after the second measurement, in a minute.",
    )


def _home(detailed: DetailedWorkspace, newest: UsageSample | None, reason: str | None) -> HomeStatsView:
    home = detailed.home
    if not holds(detailed.workspace.conditions, ConditionName.VOLUME_READY):
        return _no_home("The workspace has no home on the disk at present.")
    if home is None or home.measured_at is None:
        return _no_home("The home has not been measured yet. Its first measurement follows soon.")
    free = None if newest is None else newest.free_bytes
    if free is None and newest is not None:
        reason = "The disk of the homes cannot be observed."
    return HomeStatsView(
        bytes=home.size.bytes,
        free_bytes=free,
        complete=home.size.complete,
        measured_at=home.measured_at,
        reason=None if free is not None else reason,
    )


def _no_home(reason: str) -> HomeStatsView:
    return HomeStatsView(bytes=None, free_bytes=None, complete=None, measured_at=None, reason=reason)


def _sample_views(samples: list[UsageSample]) -> list[UsageSampleView]:
    percents = [None, *(cpu_percent(before, after) for before, after in pairwise(samples))]
    return [
        UsageSampleView(
            at=sample.at,
            cpu_percent=_rounded(percent),
            memory_bytes=sample.memory_bytes,
            processes=sample.processes,
            home_bytes=sample.home_bytes,
            home_free_bytes=sample.free_bytes,
        )
        for sample, percent in zip(samples, percents, strict=False)
    ]


def _rounded(percent: float | None) -> float | None:
    return None if percent is None else round(percent, 1)
