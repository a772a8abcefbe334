"""Termination of processes that outlived their keeper. Standard library only (see `keeper`)."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from enum import StrEnum

from codehub.host.processes import (
    ProcessId,
    boot_id,
    descendants,
    processes_of_user,
    processes_with_variable,
)
from codehub.runtimes.process import cgroups
from codehub.runtimes.process.state_directory import KeeperState

WORKSPACE_VARIABLE = "CODEHUB_WORKSPACE_ID"
_KILL_SECONDS = 5.0


class Isolation(StrEnum):
    """How workspaces are separated: by namespaces, by one user each, or not at all."""

    SANDBOX = "sandbox"
    USER = "user"
    NONE = "none"


class StaleProcessesAlive(Exception):  # noqa: N818 - a fact, not a fault
    """Survival of the workspace's processes after SIGKILL."""


def kill_stale_processes(
    workspace_id: str, state: KeeperState | None, isolation: str, uid: int | None, groups: Iterable[str]
) -> None:
    """Kill what is left of a tree whose keeper is dead, and remove its groups.

    The other parameters apply if the state cannot be read.
    """
    groups = state.groups if state is not None else list(groups)
    deadline = time.monotonic() + _KILL_SECONDS
    cgroups.forbid_forks(groups)
    while processes := _find_stale_processes(workspace_id, state, isolation, uid) | cgroups.members(groups):
        if time.monotonic() > deadline:
            pids = ", ".join(str(process.pid) for process in processes)
            raise StaleProcessesAlive(f"processes {pids} of the workspace do not end, not even by SIGKILL")
        for process in processes:
            process.send(signal.SIGKILL)
        time.sleep(0.01)
    cgroups.remove(groups)


def _find_stale_processes(
    workspace_id: str, state: KeeperState | None, isolation: str, uid: int | None
) -> set[ProcessId]:
    found: set[ProcessId] = set()
    if state is not None:
        isolation, uid = state.isolation, state.uid
        if state.boot_id == boot_id() and state.child is not None and state.child.is_alive():
            found |= {state.child, *descendants(state.child.pid)}
    if isolation == Isolation.USER and uid is not None:
        found.update(processes_of_user(uid))
    elif isolation == Isolation.NONE:
        found.update(processes_with_variable(f"{WORKSPACE_VARIABLE}={workspace_id}"))
    return found
