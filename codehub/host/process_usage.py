"""CPU time, memory and threads of process trees, as /proc shows them."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass

from codehub.host.processes import PROC

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class TreeUsage:
    """Resources of all processes below one.

    The CPU time includes that of processes that have ended, unless their parents ignored that.
    """

    cpu_seconds: float
    resident_bytes: int
    """Memory that processes share counts for each of them."""
    threads: int


@dataclass(frozen=True)
class _Process:
    parent: int
    own_ticks: int
    ended_ticks: int
    """CPU time of children that it has waited for."""
    threads: int
    pages: int


def usage_below(ancestors: Collection[int]) -> dict[int, TreeUsage]:
    """Return what runs below each of these processes, after one look at all processes.

    One that does not exist is left out. An ancestor counts only for its children that have ended.
    """
    processes = _read_all()
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    return {
        ancestor: _usage(processes[ancestor], [processes[pid] for pid in _below(ancestor, children)])
        for ancestor in ancestors
        if ancestor in processes
    }


def _below(ancestor: int, children: dict[int, list[int]]) -> list[int]:
    found = list(children.get(ancestor, ()))
    for pid in found:
        found += children.get(pid, ())
    return found


def _usage(ancestor: _Process, below: list[_Process]) -> TreeUsage:
    ticks = ancestor.ended_ticks + sum(process.own_ticks + process.ended_ticks for process in below)
    return TreeUsage(
        ticks / _TICKS,
        sum(process.pages for process in below) * _PAGE,
        sum(process.threads for process in below),
    )


def _read_all() -> dict[int, _Process]:
    pids = [int(name) for name in os.listdir(PROC) if name.isdigit()]  # noqa: PTH208 - names only
    return {pid: process for pid in pids if (process := _read(pid)) is not None}


def _read(pid: int) -> _Process | None:
    try:
        text = (PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    user, system, ended_user, ended_system = (int(field) for field in fields[11:15])
    return _Process(
        int(fields[1]), user + system, ended_user + ended_system, int(fields[17]), max(0, int(fields[21]))
    )
