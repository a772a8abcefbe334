"""Processes of a container, as the host sees them. Standard library only (see `engine_http`)."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

from codehub.host.processes import ProcessId, descendants


@dataclass(frozen=True)
class ContainerProcess:
    """A running container: its id, and its first process."""

    id: str
    init: ProcessId

    @classmethod
    def of(cls, container_id: str, pid: int) -> ContainerProcess | None:
        """Return the container whose first process has this PID, or None if we do not see it."""
        init = process_in(container_id, pid)
        return None if init is None else cls(container_id, init)


def process_in(container_id: str, pid: int) -> ProcessId | None:
    """Return the process with a PID that the engine named, if it is in the container.

    The control group shows that. The PID may be another process's by now, or belong to a PID
    namespace in which we are not.
    """
    process = ProcessId.of(pid) if pid > 0 else None
    try:
        is_inside = container_id in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        is_inside = False
    return process if process is not None and is_inside and process.is_alive() else None


def kill_tree(process: ProcessId) -> None:
    """Kill a process and all below it."""
    below = descendants(process.pid) if process.is_alive() else {}
    process.send(signal.SIGKILL)
    for each in below:
        each.send(signal.SIGKILL)
