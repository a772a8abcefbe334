"""Processes of a container that hold the output of a command. Standard library only (see `engine_http`).

The engine closes its end of the output two seconds after the command, so the monitor would see no
more of what the command has left in the background.
"""

from __future__ import annotations

import os
import selectors

from codehub.host.processes import (
    ProcessId,
    descendants,
    has_open,
    parent_of,
    pipes_of,
    processes_of_session,
)
from codehub.runtimes.docker.container_process import ContainerProcess


class OutputHolders:
    """Processes that have the pipes between a command and the engine open."""

    def __init__(self, container: ContainerProcess) -> None:
        self._container = container
        self._pipes: set[str] = set()
        self._watched: int | None = None

    def find_pipes(self, leader: ProcessId) -> None:
        """Find the pipes of a command while processes of its session live.

        The engine's shim, the parent of the container's first process, has their other ends. Without
        root its descriptors cannot be read, and no pipes are found.
        """
        shim = parent_of(self._container.init.pid)
        session = processes_of_session(leader)
        if shim is not None and session:
            held = set[str]().union(*(pipes_of(process.pid) for process in session))
            self._pipes = (held & pipes_of(shim)) - pipes_of(self._container.init.pid)

    def find(self) -> list[ProcessId]:
        """Return the orphans of the command: they are below the container's first process."""
        if not self._pipes:
            return []
        return [each for each in descendants(self._container.init.pid) if has_open(each.pid, self._pipes)]

    @property
    def are_watched(self) -> bool:
        """Whether one was alive at the last look. The selector shows when that one ends."""
        return self._watched is not None

    def watch(self, selector: selectors.BaseSelector) -> None:
        """Watch one of them, and another once it has ended, until there is none."""
        for process in self.find():
            try:
                handle = os.pidfd_open(process.pid)
            except ProcessLookupError:
                continue
            if process.is_alive():
                self._watched = handle
                selector.register(handle, selectors.EVENT_READ, lambda _: self._watch_another(selector))
                return
            os.close(handle)

    def _watch_another(self, selector: selectors.BaseSelector) -> None:
        assert self._watched is not None
        selector.unregister(self._watched)
        os.close(self._watched)
        self._watched = None
        self.watch(selector)
