"""Program that tries one isolation barrier as a start would use it.

`python -m codehub.runtimes.process.isolation_check_program` reads an `IsolationCheck` from standard
input and prints an `IsolationCheckResult`. It is a separate program because it forks, and its
caller has threads. All that it starts is below it in the process tree, so that the caller can kill it.
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
_TRANSIENT = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EINTR)


@dataclass(frozen=True)
class IsolationCheck:
    """A command to run behind barriers."""

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
class IsolationCheckResult:
    """The outcome of a check: an empty `error` means success."""

    error: str = ""
    is_transient: bool = False
    """Nothing was refused, so the next attempt may succeed, and the barrier may exist."""


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    print(json.dumps(asdict(check(IsolationCheck.from_json(json.load(sys.stdin))))))


def check(request: IsolationCheck) -> IsolationCheckResult:
    try:
        return run(request)
    except OSError as error:
        return IsolationCheckResult(str(error), is_transient(str(error)))


def is_transient(error: str) -> bool:
    """Compare texts, because other programs print their errors without a number."""
    return any(os.strerror(number) in error for number in _TRANSIENT)


def run(request: IsolationCheck) -> IsolationCheckResult:
    """Run the command behind the barriers. The network helper, if any, ends with this process."""
    ours, theirs = socket.socketpair()

    def confine() -> None:
        cgroups.join(request.groups)
        if request.uplink is not None:
            enter(theirs, request.uplink)
        if request.seccomp:
            seccomp.install(base64.b64decode(request.seccomp))

    output = os.memfd_create("output")
    try:
        cgroups.create(request.groups)
        child = spawn(request.argv, request.env, output, confine)
        network = Network(request.uplink) if request.uplink is not None else None
        if network is not None:
            network.send_namespaces(ours)
        child.wait()
        _, status = os.waitpid(child.pid, 0)
    finally:
        with contextlib.suppress(OSError):  # the check is done, and the group is removed later
            cgroups.remove(request.groups)
    code = os.waitstatus_to_exitcode(status)
    error = os.pread(output, 4096, 0).decode(errors="replace").strip()
    if code == 0:
        return IsolationCheckResult()
    return IsolationCheckResult(error or f"exit code {code}", code < 0 or is_transient(error))


if __name__ == "__main__":
    main()
