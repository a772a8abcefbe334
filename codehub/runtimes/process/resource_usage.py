"""Resources that process workspaces use: from their control groups, else from /proc (ADR 0039).

A file that is missing, or holds something else than expected, makes its value Unknown. The sentences
name no paths of the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from codehub.domain.observation import Unknown
from codehub.domain.resource_usage import Amount, CpuTime, ResourceUsage, plausible_count
from codehub.host.process_usage import TreeUsage, usage_below
from codehub.runtimes.process.cgroups import outermost
from codehub.runtimes.process.state_directory import KeeperState

_LONGEST_FILE = 64 << 10
_NO_LIMIT = 1 << 60
"""Version 1 shows a number near 2**63 if there is no limit."""
_NO_GROUP = Unknown("No control group counts this workspace's resources.")

Files: TypeAlias = Callable[[str], str | None]
"""Returns the content of the file with this name in any of the groups, or None."""


def measure(states: Mapping[str, KeeperState], within: float) -> dict[str, ResourceUsage]:
    """Return what these running workspaces use, in this order, until `within` seconds have passed."""
    deadline = time.monotonic() + within
    found: dict[str, ResourceUsage] = {}
    for workspace_id, state in states.items():
        if time.monotonic() > deadline:
            break
        found[workspace_id] = read_groups(state.op_id, state.groups)
    missing = {name: states[name] for name, usage in found.items() if _is_incomplete(usage)}
    if missing:
        trees = usage_below([state.keeper.pid for state in missing.values()])
        found |= {name: complete(found[name], trees.get(state.keeper.pid)) for name, state in missing.items()}
    return found


def read_groups(op_id: str, groups: Sequence[str]) -> ResourceUsage:
    """Return what the control groups of a workspace show."""
    directories = [Path(group) for group in outermost(groups)]

    def read(name: str) -> str | None:
        return next((text for each in directories if (text := _read_file(each / name)) is not None), None)

    return ResourceUsage(f"{op_id} groups", _cpu(read), _memory(read), _processes(read))


def complete(usage: ResourceUsage, tree: TreeUsage | None) -> ResourceUsage:
    """Fill in what no control group counts.

    A CPU counter of another kind counts as another run: the two must not be compared.
    """
    if tree is None:
        return usage
    if isinstance(usage.cpu, Unknown):
        run = usage.run.replace(" groups", " processes")
        usage = replace(usage, run=run, cpu=CpuTime(tree.cpu_seconds, None))
    if isinstance(usage.memory, Unknown):
        usage = replace(usage, memory=Amount(tree.resident_bytes, None))
    if isinstance(usage.processes, Unknown):
        usage = replace(usage, processes=Amount(tree.threads, None))
    return usage


def _is_incomplete(usage: ResourceUsage) -> bool:
    return any(isinstance(value, Unknown) for value in (usage.cpu, usage.memory, usage.processes))


def _cpu(read: Files) -> CpuTime | Unknown:
    microseconds = _field(read("cpu.stat"), "usage_usec")
    if microseconds is not None:
        return CpuTime(microseconds / 1e6, _v2_cores(read("cpu.max")))
    nanoseconds = _count(read("cpuacct.usage"))
    if nanoseconds is None:
        return _NO_GROUP
    return CpuTime(nanoseconds / 1e9, _cores(read("cpu.cfs_quota_us"), read("cpu.cfs_period_us")))


def _v2_cores(text: str | None) -> float | None:
    words = (text or "").split()
    return _cores(*words) if len(words) == 2 else None


def _cores(quota: str | None, period: str | None) -> float | None:
    """Return the cap in cores, or None without a cap: `max` or -1."""
    allowed, each = _count(quota), _count(period)
    return allowed / each if allowed and each else None


def _memory(read: Files) -> Amount | Unknown:
    """Return the memory without files that the kernel drops as soon as it needs the memory."""
    statistics = read("memory.stat")
    used, cached = _count(read("memory.current")), _field(statistics, "inactive_file")
    if used is None:
        used, cached = _count(read("memory.usage_in_bytes")), _field(statistics, "total_inactive_file")
    if used is None:
        return _NO_GROUP
    limit = _limit(read("memory.max") or read("memory.limit_in_bytes"))
    return Amount(max(0, used - (cached or 0)), limit)


def _processes(read: Files) -> Amount | Unknown:
    count = _count(read("pids.current"))
    return _NO_GROUP if count is None else Amount(count, _limit(read("pids.max")))


def _limit(text: str | None) -> int | None:
    limit = _count(text)
    return limit if limit is not None and limit < _NO_LIMIT else None


def _field(text: str | None, name: str) -> int | None:
    """Return the value of a line `name value`."""
    lines = (line.split() for line in (text or "").splitlines())
    return next((_count(words[1]) for words in lines if len(words) == 2 and words[0] == name), None)


def _count(text: str | None) -> int | None:
    word = (text or "").strip()
    is_number = word.isascii() and word.isdigit() and len(word) < 20
    return plausible_count(int(word)) if is_number else None


def _read_file(file: Path) -> str | None:
    """Return the content of a file, or None if it is missing or unreadable: its group may be gone."""
    try:
        with file.open("rb") as opened:
            return opened.read(_LONGEST_FILE).decode("ascii", "replace")
    except OSError:
        return None
