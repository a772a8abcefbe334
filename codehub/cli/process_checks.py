"""Checks of the isolation of process workspaces, by detecting the barriers."""

import os

from codehub.cli.findings import Finding, fail, ok, warn
from codehub.runtimes.base import RuntimeFailure
from codehub.runtimes.process.barrier_detection import find_barriers
from codehub.runtimes.process.cgroup_caps import CONTROLLERS
from codehub.runtimes.process.sandbox import IsolationBarriers
from codehub.runtimes.process.stale_processes import Isolation
from codehub.settings import Settings


async def check_process_runtime(settings: Settings) -> list[Finding]:
    if settings.runtime != "process":
        return []
    try:
        barriers = await find_barriers()
    except RuntimeFailure as failure:
        return [
            fail("sandbox", failure.message, "check the load of this machine, and run `codehub doctor` again")
        ]
    return [
        sandbox(barriers, settings.insecure_process_runtime),
        system_calls(barriers),
        network(barriers),
        caps(barriers),
    ]


def sandbox(barriers: IsolationBarriers, is_accepted: bool) -> Finding:
    if barriers.isolation is Isolation.SANDBOX:
        return ok("sandbox", "bubblewrap works: a workspace has its own view of processes and files")
    advice = (
        "apt-get install bubblewrap"
        if "is missing" in barriers.why_not_better
        else "allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone, AppArmor)"
    )
    if barriers.isolation is Isolation.USER:
        message = "only user ids separate workspaces"
        return warn("sandbox", f"{barriers.why_not_better}; {message}", advice)
    level = warn if is_accepted else fail
    return level("sandbox", f"{barriers.why_not_better}; nothing separates workspaces", advice)


def system_calls(barriers: IsolationBarriers) -> Finding:
    if barriers.seccomp:
        return ok("seccomp", "a workspace cannot make user namespaces or use io_uring, keyrings, BPF or perf")
    return warn(
        "seccomp",
        f"no system call of a workspace is denied: {barriers.why_no_seccomp}",
        "run a kernel with CONFIG_SECCOMP_FILTER, on x86_64 or aarch64; or use the Docker runtime",
    )


def network(barriers: IsolationBarriers) -> Finding:
    if barriers.slirp is not None:
        message = "slirp4netns works: a workspace reaches the internet, not this machine's networks"
        return ok("network", message)
    return warn(
        "network",
        f"workspaces share this machine's network, loopback included: {barriers.why_no_network}",
        "apt-get install bubblewrap slirp4netns, and check that /dev/net/tun exists; or keep services that "
        "trust loopback off this machine",
    )


def caps(barriers: IsolationBarriers) -> Finding:
    found = barriers.cgroups
    missing = [name for name in CONTROLLERS if name not in found.parents]
    if not missing:
        message = f"control groups (version {found.version}) cap processor time, memory and processes"
        return ok("caps", message)
    message = f"no control group caps a workspace's {', '.join(missing)} ({found.why_not_all})"
    if os.geteuid() == 0:
        return warn("caps", message, "make /sys/fs/cgroup writable; until then only resource limits apply")
    return warn("caps", message, "run CodeHub as root, or as a systemd service with Delegate=yes")
