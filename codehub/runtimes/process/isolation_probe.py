"""What this machine can put around a workspace: each wall is tried for real before it is relied on."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from codehub.domain.states import ErrorReason
from codehub.host.processes import descendants
from codehub.runtimes.base import RuntimeFailure
from codehub.runtimes.egress import DEFAULT_EGRESS, routing_rules
from codehub.runtimes.process import resource_limits, seccomp
from codehub.runtimes.process.forkserver_client import PYTHON_ENVIRONMENT, python_program
from codehub.runtimes.process.isolation_check import CheckResult, IsolationCheck
from codehub.runtimes.process.netlink import own_networks
from codehub.runtimes.process.network import HELPER_UID_OFFSET, RESOLVER, Uplink
from codehub.runtimes.process.resource_limits import Caps, Cgroups, find_cgroups
from codehub.runtimes.process.sandbox import SYSTEM_PATH, IsolationBarriers, probe
from codehub.runtimes.process.stale_processes import Isolation
from codehub.runtimes.seccomp import machine

_PROBE_SECONDS = 20.0
_END_SECONDS = 5.0
_PROBE_HELPER_UID = 65534 + HELPER_UID_OFFSET
_PROBE_CAPS = Caps(cpus=1, memory_bytes=64 << 20, pids=16)

_MISSING = "{0} is missing (install it, on Debian: apt-get install {0})"
_NAMES = {
    "seccomp": "the filter of system calls",
    "cgroups": "control groups",
    "bwrap": "bubblewrap",
    "slirp": "slirp4netns",
}
_UNCLEAR = (
    "it could not be found out what barriers there are on this machine ({}), and no workspace is started behind "
    "weaker ones than it may have. The next start tries again; if it stays like this, see what keeps the "
    "program from its work, or uninstall it"
)


async def find_barriers() -> IsolationBarriers:
    """The strongest there are. A program that is installed but may not do its work is no wall; one that was
    only not able to do it now is a failure, lest a bad moment take barriers away for as long as CodeHub runs."""
    bwrap, setpriv, slirp = _program("bwrap"), _program("setpriv"), _program("slirp4netns")
    cgroups = await asyncio.to_thread(find_cgroups)
    filter_program = _filter()
    troubles = await _try(_attempts(bwrap, setpriv, slirp, cgroups, filter_program))
    barriers = _sandbox_and_network(bwrap, setpriv, slirp, cgroups, troubles)
    if not filter_program:
        return replace(barriers, why_no_seccomp=f"there is none for {os.uname().machine}")
    if troubles["seccomp"]:
        return replace(barriers, why_no_seccomp=troubles["seccomp"])
    return replace(barriers, seccomp=filter_program)


def _sandbox_and_network(
    bwrap: str | None, setpriv: str | None, slirp: str | None, cgroups: Cgroups, troubles: Mapping[str, str]
) -> IsolationBarriers:
    if troubles.get("cgroups"):
        cgroups = replace(cgroups, parents={}, why_not_all=troubles["cgroups"])
    if troubles.get("bwrap") != "":
        isolation = Isolation.USER if os.geteuid() == 0 else Isolation.NONE
        why = _why_no_sandbox(bwrap, troubles)
        return IsolationBarriers(isolation, None, setpriv, why, cgroups, None, f"it takes a sandbox: {why}")
    barriers = IsolationBarriers(Isolation.SANDBOX, bwrap, setpriv, cgroups=cgroups)
    if slirp is None:
        return replace(barriers, why_no_network=_MISSING.format("slirp4netns"))
    if troubles["slirp"]:
        return replace(barriers, why_no_network=f"it does not work here ({troubles['slirp']})")
    return replace(barriers, slirp=slirp)


def _attempts(
    bwrap: str | None, setpriv: str | None, slirp: str | None, cgroups: Cgroups, filter_program: str
) -> dict[str, IsolationCheck]:
    attempts: dict[str, IsolationCheck] = {}
    if filter_program:
        attempts["seccomp"] = IsolationCheck(["/bin/true"], seccomp=filter_program)
    if cgroups.parents:
        plan = resource_limits.group_settings(cgroups, f"probe-{os.getpid()}", _PROBE_CAPS)
        attempts["cgroups"] = IsolationCheck(["/bin/true"], groups=plan)
    if bwrap and (setpriv or os.geteuid() != 0):
        attempts["bwrap"] = _sandbox(bwrap, setpriv, None)
        if slirp:
            attempts["slirp"] = _sandbox(bwrap, setpriv, slirp)
    return attempts


def _filter() -> str:
    """Return the filter of system calls in base64; empty where there is no table of this machine's calls."""
    kind = machine()
    return "" if kind is None else base64.b64encode(seccomp.program(kind)).decode()


def _program(name: str) -> str | None:
    """By its real path, which the sandbox sees as well: a link may lie where it does not look."""
    found = shutil.which(name)
    return None if found is None else str(Path(found).resolve())


def _sandbox(bwrap: str, setpriv: str | None, slirp: str | None) -> IsolationCheck:
    helper = _PROBE_HELPER_UID if os.geteuid() == 0 else None
    probed = routing_rules(DEFAULT_EGRESS, own_networks(), RESOLVER)
    uplink = Uplink(slirp, helper, probed) if slirp is not None else None
    argv = probe(bwrap, setpriv, own_network=slirp is not None)
    return IsolationCheck(argv, {"PATH": SYSTEM_PATH}, uplink=uplink)


def _why_no_sandbox(bwrap: str | None, troubles: Mapping[str, str]) -> str:
    if bwrap is None:
        return _MISSING.format("bubblewrap")
    return f"bubblewrap does not work here ({troubles.get('bwrap', 'setpriv is missing')})"


async def _try(attempts: Mapping[str, IsolationCheck]) -> dict[str, str]:
    """What was refused to each: nothing, where the text is empty."""
    # Not the loop's own subprocesses: uvloop's wait for descriptors that helpers hold.
    answers = await asyncio.gather(*(asyncio.to_thread(_ask, attempt) for attempt in attempts.values()))
    told = dict(zip(attempts, answers, strict=True))
    unclear = [f"{_NAMES[name]}: {answer.trouble}" for name, answer in told.items() if answer.may_pass]
    if unclear:
        raise RuntimeFailure(ErrorReason.ActionFailed, _UNCLEAR.format("; ".join(unclear)))
    return {name: answer.trouble for name, answer in told.items()}


def _ask(attempt: IsolationCheck) -> CheckResult:
    try:
        asked = subprocess.Popen(
            python_program("codehub.runtimes.process.isolation_check"),
            env=PYTHON_ENVIRONMENT,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        return CheckResult(str(error), may_pass=True)
    with asked:
        try:
            output, errors = asked.communicate(json.dumps(asdict(attempt)).encode(), _PROBE_SECONDS)
        except subprocess.TimeoutExpired:
            _end(asked)
            return CheckResult(f"no answer within {_PROBE_SECONDS:g} s", may_pass=True)
    if asked.returncode != 0:
        words = errors.decode(errors="replace").strip()
        return CheckResult(words or f"exit code {asked.returncode}", may_pass=True)
    return CheckResult(**json.loads(output))


def _end(asked: subprocess.Popen[bytes]) -> None:
    """With all that it started, and before it can leave that behind."""
    asked.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + _END_SECONDS
    while (left := descendants(asked.pid)) and time.monotonic() < deadline:
        for process in left:
            process.send(signal.SIGKILL)
    asked.kill()
