"""The request for a file agent in a container. Standard library only (see `file_forkserver`)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from codehub.host.processes import ProcessId


@dataclass(frozen=True)
class FileAgentRequest:
    """A container, by its first process, and how processes run in it."""

    init: ProcessId
    uid: int
    home: str
    groups: list[str]
    seccomp: str
    """The filter of system calls in base64, empty if there is none."""
    open_files: int

    def to_line(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_line(cls, line: str) -> FileAgentRequest:
        raw = json.loads(line)
        return cls(**{**raw, "init": ProcessId(**raw["init"])})
