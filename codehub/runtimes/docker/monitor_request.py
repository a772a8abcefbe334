"""The request to monitor a command. Standard library only (see `engine_http`)."""

from __future__ import annotations

import json
from dataclasses import dataclass

from codehub.host.processes import ProcessId
from codehub.runtimes.docker.container_process import ContainerProcess
from codehub.runtimes.exec_request import ExecRequest


@dataclass(frozen=True)
class MonitorRequest:
    """A command, the container for it, and the directory for its record."""

    engine_url: str
    container: ContainerProcess
    directory: str
    groups: tuple[str, ...]
    """Control groups that the monitor joins, so that no restart of CodeHub's service ends it."""
    command: ExecRequest

    def to_json(self) -> str:
        init = self.container.init
        return json.dumps(
            {
                "engine_url": self.engine_url,
                "container": [self.container.id, init.pid, init.started],
                "directory": self.directory,
                "groups": self.groups,
                "command": self.command.to_json(),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> MonitorRequest:
        raw = json.loads(text)
        container_id, pid, started = raw["container"]
        return cls(
            raw["engine_url"],
            ContainerProcess(container_id, ProcessId(pid, started)),
            raw["directory"],
            tuple(raw["groups"]),
            ExecRequest.from_json(raw["command"]),
        )
