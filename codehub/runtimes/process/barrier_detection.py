"""Detection of the isolation barriers that this machine supports, by trying each one."""

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
from codehub.runtimes.process import cgroup_caps, seccomp
from codehub.runtimes.process.cgroup_caps import Caps, Cgroups, find_cgroups
from codehub.runtimes.process.forkserver_client import PYTHON_ENVIRONMENT, python_program
from codehub.runtimes.process.isolation_check_program import IsolationCheck, IsolationCheckResult
from codehub.runtimes.process.netlink import own_networks
from codehub.runtimes.process.network import HELPER_UID_OFFSET, RESOLVER, Uplink
from codehub.runtimes.process.sandbox import SYSTEM_PATH, IsolationBarriers, check_command
from codehub.runtimes.process.stale_processes import Isolation
from codehub.runtimes.seccomp import machine

_PROBE_SECONDS = 20.0
_KILL_SECONDS = 5.0
_PROBE_HELPER_UID = 65534 + HELPER_UID_OFFSET
_PROBE_CAPS = Caps(cpus=1, memory_bytes=64 << 20, pids=16)

_MISSING = "{0} is missing (install it, on Debian: apt-get install {0})"
_NAMES = {
    "seccomp": "the filter of system calls",
    "cgroups": "control groups",
    "bwrap": "bubblewrap",
    "slirp": "slirp4netns",
}
_INCONCLUSIVE = (
    "the check of this machine's isolation did not finish ({}), and CodeHub starts no workspace with weaker "
    "isolation than the machine may support. The next start tries again. If the error stays, repair the "
    "program or uninstall it"
)


async def find_barriers() -> IsolationBarriers:
    """Return the strongest barriers that work here.

    A program that is installed but refused by the kernel counts as missing. A transient failure
    raises RuntimeFailure: otherwise one bad moment would weaken isolation for as long as CodeHub
    runs.
    """
    bwrap, setpriv, slirp = _program("bwrap"), _program("setpriv"), _program("slirp4netns")
    cgroups = await asyncio.to_thread(find_cgroups)
    filter_program = _filter()
    errors = await _run_checks(_checks(bwrap, setpriv, slirp, cgroups, filter_program))
    barriers = _sandbox_and_network(bwrap, setpriv, slirp, cgroups, errors)
    if not filter_program:
        return replace(barriers, why_no_seccomp=f"there is no filter for {os.uname().machine}")
    if errors["seccomp"]:
        return replace(barriers, why_no_seccomp=errors["seccomp"])
    return replace(barriers, seccomp=filter_program)


def _sandbox_and_network(
    bwrap: str | None, setpriv: str | None, slirp: str | None, cgroups: Cgroups, errors: Mapping[str, str]
) -> IsolationBarriers:
    if errors.get("cgroups"):
        cgroups = replace(cgroups, parents={}, why_not_all=errors["cgroups"])
    if errors.get("bwrap") != "":
        isolation = Isolation.USER if os.geteuid() == 0 else Isolation.NONE
        why = _why_no_sandbox(bwrap, errors)
        return IsolationBarriers(isolation, None, setpriv, why, cgroups, None, f"it needs a sandbox: {why}")
    barriers = IsolationBarriers(Isolation.SANDBOX, bwrap, setpriv, cgroups=cgroups)
    if slirp is None:
        return replace(barriers, why_no_network=_MISSING.format("slirp4netns"))
    if errors["slirp"]:
        return replace(barriers, why_no_network=f"it does not work here ({errors['slirp']})")
    return replace(barriers, slirp=slirp)


def _checks(
    bwrap: str | None, setpriv: str | None, slirp: str | None, cgroups: Cgroups, filter_program: str
) -> dict[str, IsolationCheck]:
    checks: dict[str, IsolationCheck] = {}
    if filter_program:
        checks["seccomp"] = IsolationCheck(["/bin/true"], seccomp=filter_program)
    if cgroups.parents:
        plan = cgroup_caps.group_settings(cgroups, f"probe-{os.getpid()}", _PROBE_CAPS)
        checks["cgroups"] = IsolationCheck(["/bin/true"], groups=plan)
    if bwrap and (setpriv or os.geteuid() != 0):
        checks["bwrap"] = _sandbox(bwrap, setpriv, None)
        if slirp:
            checks["slirp"] = _sandbox(bwrap, setpriv, slirp)
    return checks


def _filter() -> str:
    """Return the seccomp filter in base64, or "" if this architecture has no table."""
    kind = machine()
    return "" if kind is None else base64.b64encode(seccomp.program(kind)).decode()


def _program(name: str) -> str | None:
    """Return the real path of a program.

    The sandbox may not show the directory of a symbolic link.
    """
    found = shutil.which(name)
    return None if found is None else str(Path(found).resolve())


def _sandbox(bwrap: str, setpriv: str | None, slirp: str | None) -> IsolationCheck:
    helper = _PROBE_HELPER_UID if os.geteuid() == 0 else None
    rules = routing_rules(DEFAULT_EGRESS, own_networks(), RESOLVER)
    uplink = Uplink(slirp, helper, rules) if slirp is not None else None
    argv = check_command(bwrap, setpriv, own_network=slirp is not None)
    return IsolationCheck(argv, {"PATH": SYSTEM_PATH}, uplink=uplink)


def _why_no_sandbox(bwrap: str | None, errors: Mapping[str, str]) -> str:
    if bwrap is None:
        return _MISSING.format("bubblewrap")
    return f"bubblewrap does not work here ({errors.get('bwrap', 'setpriv is missing')})"


async def _run_checks(checks: Mapping[str, IsolationCheck]) -> dict[str, str]:
    """Return the error of each check, empty for success."""
    # Not asyncio's subprocesses: under uvloop they wait for descriptors that helpers keep open.
    results = await asyncio.gather(*(asyncio.to_thread(_run_check, check) for check in checks.values()))
    named = dict(zip(checks, results, strict=True))
    transient = [f"{_NAMES[name]}: {result.error}" for name, result in named.items() if result.is_transient]
    if transient:
        raise RuntimeFailure(ErrorReason.ActionFailed, _INCONCLUSIVE.format("; ".join(transient)))
    return {name: result.error for name, result in named.items()}


def _run_check(check: IsolationCheck) -> IsolationCheckResult:
    try:
        process = subprocess.Popen(
            python_program("codehub.runtimes.process.isolation_check_program"),
            env=PYTHON_ENVIRONMENT,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        return IsolationCheckResult(str(error), is_transient=True)
    with process:
        try:
            output, errors = process.communicate(json.dumps(asdict(check)).encode(), _PROBE_SECONDS)
        except subprocess.TimeoutExpired:
            _kill_tree(process)
            return IsolationCheckResult(f"no answer within {_PROBE_SECONDS:g} s", is_transient=True)
    if process.returncode != 0:
        message = errors.decode(errors="replace").strip()
        return IsolationCheckResult(message or f"exit code {process.returncode}", is_transient=True)
    return IsolationCheckResult(**json.loads(output))


def _kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill the program with all that it started. It is stopped first, so that nothing escapes."""
    process.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + _KILL_SECONDS
    while (left := descendants(process.pid)) and time.monotonic() < deadline:
        for descendant in left:
            descendant.send(signal.SIGKILL)
    process.kill()
