"""What may outlive a keeper that was killed, and how it ends. Standard library only (see `keeper`)."""

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
from codehub.runtimes.process.state_directory import State

WORKSPACE_VARIABLE = "CODEHUB_WORKSPACE_ID"
_KILL_SECONDS = 5.0


class Isolation(StrEnum):
    """What stands between two workspaces: namespaces, a user each, or nothing."""

    SANDBOX = "sandbox"
    USER = "user"
    NONE = "none"


class StaleProcessesAlive(Exception):  # noqa: N818 - a fact, not a fault
    """Processes of the workspace cannot be ended."""


def kill_stale_processes(
    workspace_id: str, state: State | None, isolation: str, uid: int | None, groups: Iterable[str]
) -> None:
    """Kill what is left of a tree whose keeper is dead, see it dead, and remove its groups.

    What the state does not tell, because it cannot be read, is taken from the rest.
    """
    groups = state.groups if state is not None else list(groups)
    deadline = time.monotonic() + _KILL_SECONDS
    cgroups.forbid_forks(groups)
    while leftovers := _find_stale_processes(workspace_id, state, isolation, uid) | cgroups.members(groups):
        if time.monotonic() > deadline:
            pids = ", ".join(str(process.pid) for process in leftovers)
            raise StaleProcessesAlive(f"processes {pids} of the workspace do not end, even when killed")
        for process in leftovers:
            process.send(signal.SIGKILL)
        time.sleep(0.01)
    cgroups.remove(groups)


def _find_stale_processes(
    workspace_id: str, state: State | None, isolation: str, uid: int | None
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
