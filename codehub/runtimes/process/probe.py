"""Try for real what a start would do: `python -m codehub.runtimes.process.probe`, with `Probe`s on its input.

A program of its own, because it forks: what asks for it has threads. It prints, for each, what went wrong.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import dataclass, field
from typing import Any

from codehub.runtimes.process import cgroups
from codehub.runtimes.process.network import Network, WayOut, enter
from codehub.runtimes.process.spawn import spawn


@dataclass(frozen=True)
class Probe:
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    groups: cgroups.Plan = field(default_factory=dict)
    way_out: WayOut | None = None

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Probe:
        way_out = raw.pop("way_out")
        return cls(**raw, way_out=None if way_out is None else WayOut.from_json(way_out))


def main() -> None:
    attempts = [Probe.from_json(raw) for raw in json.load(sys.stdin)]
    print(json.dumps([attempt_or_trouble(attempt) for attempt in attempts]))


def attempt_or_trouble(probe: Probe) -> str:
    try:
        return run(probe)
    except OSError as error:
        return str(error)


def run(probe: Probe) -> str:
    """What went wrong. The helper, if there is one, ends with us."""
    ours, theirs = socket.socketpair()

    def confine() -> None:
        cgroups.join(probe.groups)
        if probe.way_out is not None:
            enter(theirs, probe.way_out)

    output = os.memfd_create("output")
    cgroups.make(probe.groups)
    try:
        child = spawn(probe.argv, probe.env, output, confine)
        network = Network(probe.way_out) if probe.way_out is not None else None
        if network is not None:
            network.admit(ours)
        child.wait()
        _, status = os.waitpid(child.pid, 0)
    finally:
        cgroups.remove(probe.groups)
    code = os.waitstatus_to_exitcode(status)
    words = os.pread(output, 4096, 0).decode(errors="replace").strip()
    return "" if code == 0 else words or f"exit code {code}"


if __name__ == "__main__":
    main()
