"""The request to start a keeper. Standard library only (see `keeper`)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from codehub.runtimes.process.cgroups import GroupSettings
from codehub.runtimes.process.network import Uplink

LAUNCH_WITHIN_SECONDS = 30.0
"""How long the caller reserves the home for the launch, even if it is cancelled meanwhile."""


@dataclass(frozen=True)
class KeeperRequest:
    directory: str
    workspace_id: str
    op_id: str
    image: str
    ready_path: str
    isolation: str
    uid: int | None
    home: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    umask: int
    pids: int
    memory_bytes: int
    grace_seconds: float
    executions: str
    """The directory for the commands of the workspace, which outlives its container."""
    sandbox_depth: int
    """How many levels of the process tree are the sandbox itself. They get no SIGTERM and end with
    the rest."""
    launch_until: float
    """Deadline on the monotonic clock. Later the home may belong to another operation, so nothing
    is launched."""
    options: list[str] = field(default_factory=list)
    """Arguments that the program reads from a descriptor (`--args`), since its command line can be
    read inside."""
    seccomp: str = ""
    """The seccomp filter in base64, or empty for none."""
    files: dict[str, str] = field(default_factory=dict)
    groups: GroupSettings = field(default_factory=dict)
    keeper_groups: list[str] = field(default_factory=list)
    gateway_group: int | None = None
    """None if the gateway runs as the same user as the keeper."""
    uplink: Uplink | None = None
    """None if the workspace is in the host's network."""

    @classmethod
    def from_json(cls, text: str) -> KeeperRequest:
        raw = json.loads(text)
        uplink = raw.pop("uplink")
        return cls(**raw, uplink=None if uplink is None else Uplink.from_json(uplink))
