"""Try for real what a start would do: `python -m codehub.runtimes.process.isolation_check`, with a `IsolationCheck` for input.

A program of its own, because it forks: what asks for it has threads. It prints an `CheckResult`. Whoever gives up
on it finds all that it started below it.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import errno
import json
import os
import socket
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

from codehub.runtimes.process import cgroups, seccomp
from codehub.runtimes.process.network import Network, Uplink, enter
from codehub.runtimes.process.spawn import spawn

_PR_SET_CHILD_SUBREAPER = 36
_PASSING = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EINTR)


@dataclass(frozen=True)
class IsolationCheck:
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    groups: cgroups.GroupSettings = field(default_factory=dict)
    uplink: Uplink | None = None
    seccomp: str = ""

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> IsolationCheck:
        uplink = raw.pop("uplink")
        return cls(**raw, uplink=None if uplink is None else Uplink.from_json(uplink))


@dataclass(frozen=True)
class CheckResult:
    trouble: str = ""
    may_pass: bool = False
    """Nothing was refused: the next try may succeed, so that this one tells nothing of the machine."""


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    print(json.dumps(asdict(answer(IsolationCheck.from_json(json.load(sys.stdin))))))


def answer(probe: IsolationCheck) -> CheckResult:
    try:
        return run(probe)
    except OSError as error:
        return CheckResult(str(error), may_pass(str(error)))


def may_pass(words: str) -> bool:
    """By the words: what programs that we started say of their own troubles has no number."""
    return any(os.strerror(number) in words for number in _PASSING)


def run(probe: IsolationCheck) -> CheckResult:
    """The helper, if there is one, ends with us."""
    ours, theirs = socket.socketpair()

    def confine() -> None:
        cgroups.join(probe.groups)
        if probe.uplink is not None:
            enter(theirs, probe.uplink)
        if probe.seccomp:
            seccomp.install(base64.b64decode(probe.seccomp))

    output = os.memfd_create("output")
    try:
        cgroups.create(probe.groups)
        child = spawn(probe.argv, probe.env, output, confine)
        network = Network(probe.uplink) if probe.uplink is not None else None
        if network is not None:
            network.admit(ours)
        child.wait()
        _, status = os.waitpid(child.pid, 0)
    finally:
        with contextlib.suppress(OSError):  # it did its work, and is swept up later
            cgroups.remove(probe.groups)
    code = os.waitstatus_to_exitcode(status)
    words = os.pread(output, 4096, 0).decode(errors="replace").strip()
    return (
        CheckResult() if code == 0 else CheckResult(words or f"exit code {code}", code < 0 or may_pass(words))
    )


if __name__ == "__main__":
    main()
