"""CPU, memory and processes of a running workspace, and the average of its CPU use (ADR 0039).

Runtimes report counters, which come from outside: control groups, or a container engine. A value
that was not reported, or cannot be right, is Unknown with a sentence that says why.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from codehub.domain import awake
from codehub.domain.awake import CpuHold
from codehub.domain.disk import HomeSize
from codehub.domain.observation import Unknown

SAMPLE_EVERY: Final = timedelta(seconds=60)
HISTORY: Final = timedelta(hours=1)
CURRENT_WITHIN: Final = 3 * SAMPLE_EVERY
"""Age up to which a sample shows the present state."""
LARGEST_COUNT: Final = 2**63
MOST_CORES: Final = 4096
"""A faster counter is wrong."""


@dataclass(frozen=True)
class CpuTime:
    """CPU time used since the counter began, and the cap in cores; None without a cap."""

    seconds: float
    cores: float | None


@dataclass(frozen=True)
class Amount:
    """An amount in use, and its cap; None without a cap."""

    used: int
    limit: int | None


@dataclass(frozen=True)
class ResourceUsage:
    """Resources that one container uses. Counters of another `run` began at another time."""

    run: str
    cpu: CpuTime | Unknown
    memory: Amount | Unknown
    processes: Amount | Unknown


@dataclass(frozen=True)
class UsageSample:
    """One sample of a running workspace, as it is stored. None: not measured, see the reasons.

    `home_bytes` and `free_bytes` are the size of its home, and how much more it may take.
    """

    at: datetime
    run: str
    cpu_seconds: float | None = None
    cpu_cores: float | None = None
    memory_bytes: int | None = None
    memory_limit: int | None = None
    processes: int | None = None
    processes_limit: int | None = None
    home_bytes: int | None = None
    free_bytes: int | None = None
    cpu_reason: str | None = None
    memory_reason: str | None = None
    processes_reason: str | None = None


def to_sample(
    usage: ResourceUsage, home: HomeSize | None, disk_free: int | None, at: datetime
) -> UsageSample:
    cpu, memory, processes = usage.cpu, usage.memory, usage.processes
    return UsageSample(
        at,
        usage.run,
        None if isinstance(cpu, Unknown) else cpu.seconds,
        None if isinstance(cpu, Unknown) else cpu.cores,
        None if isinstance(memory, Unknown) else memory.used,
        None if isinstance(memory, Unknown) else memory.limit,
        None if isinstance(processes, Unknown) else processes.used,
        None if isinstance(processes, Unknown) else processes.limit,
        None if home is None else home.bytes,
        _free_of_home(home, disk_free),
        cpu.message if isinstance(cpu, Unknown) else None,
        memory.message if isinstance(memory, Unknown) else None,
        processes.message if isinstance(processes, Unknown) else None,
    )


def _free_of_home(home: HomeSize | None, disk_free: int | None) -> int | None:
    """Return how much more a home may take: what is free on its disk, or left of its quota."""
    if disk_free is None or home is None or home.quota_bytes == 0:
        return disk_free
    return min(disk_free, max(0, home.quota_bytes - home.bytes))


def current_sample(
    samples: Sequence[UsageSample], running_since: datetime | None, now: datetime
) -> UsageSample | str:
    """Return the sample that shows what a workspace uses now, or a sentence that says why none does."""
    if running_since is None:
        return "The workspace does not run, so it uses nothing."
    newest = samples[-1] if samples else None
    if newest is not None and newest.at >= running_since and now - newest.at <= CURRENT_WITHIN:
        return newest
    if now - running_since <= CURRENT_WITHIN:
        return "The workspace has just started. It is measured once a minute."
    if newest is None or newest.at < running_since:
        return "The workspace has not been measured since it started."
    return f"The workspace has not been measured since {newest.at:%Y-%m-%d %H:%M} UTC."


def cpu_seconds_between(before: UsageSample, after: UsageSample) -> float | None:
    """Return the CPU time used between two samples; None if it was not measured, or cannot be right."""
    if before.cpu_seconds is None or after.cpu_seconds is None or before.run != after.run:
        return None
    elapsed = (after.at - before.at).total_seconds()
    used = after.cpu_seconds - before.cpu_seconds
    return used if elapsed > 0 and 0 <= used <= MOST_CORES * elapsed else None


def cpu_percent(before: UsageSample, after: UsageSample) -> float | None:
    """Return the CPU use between two samples in percent of one core, or None."""
    used = cpu_seconds_between(before, after)
    return None if used is None else 100 * used / (after.at - before.at).total_seconds()


def average_cpu_percent(samples: Sequence[UsageSample]) -> float:
    """Return the CPU use over CPU_WINDOW up to the newest sample, in percent of one core.

    Only the newest run counts. Time that was not measured counts as time without use, so the true
    average is at least this.
    """
    if not samples:
        return 0.0
    newest = samples[-1]
    begin = newest.at - awake.CPU_WINDOW
    total = 0.0
    for before, after in pairwise(sample for sample in samples if sample.run == newest.run):
        used = cpu_seconds_between(before, after)
        if used is not None and after.at > begin:
            total += used * ((after.at - max(before.at, begin)) / (after.at - before.at))
    return 100 * total / awake.CPU_WINDOW.total_seconds()


def next_cpu_hold(hold: CpuHold | None, samples: Sequence[UsageSample], above: int) -> CpuHold | None:
    """Return the hold of a workspace after its newest sample, or None if its CPU use does not hold it.

    `above`: the CPU use above which it stays awake, or 0. A sample without CPU time leaves the hold as
    it is, so it ends once it was not measured for SEEN_WITHIN.
    """
    if above == 0:
        return None
    newest = samples[-1]
    if newest.cpu_seconds is None:
        return hold
    percent = average_cpu_percent(samples)
    if percent <= above:
        return None
    return CpuHold(percent, above, newest.at if hold is None else hold.began_at, newest.at)


def needed_for_average(samples: Sequence[UsageSample]) -> list[UsageSample]:
    """Return the samples that averages may still need: those of the window, and the one before."""
    begin = samples[-1].at - awake.CPU_WINDOW
    outside = sum(sample.at <= begin for sample in samples)
    return list(samples[max(0, outside - 1) :])


def plausible_count(value: object) -> int | None:
    """Return a count from outside, or None if it is none."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value < LARGEST_COUNT else None
