"""Builder of the request for a keeper, from a workload and what this machine supports."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from codehub.domain.images import MOST_PIDS
from codehub.domain.port_links import PortLinks
from codehub.runtimes import recorded_commands
from codehub.runtimes.base import WorkloadSpec
from codehub.runtimes.block_device import disk_of
from codehub.runtimes.egress import Egress, routing_rules
from codehub.runtimes.process import cgroup_caps
from codehub.runtimes.process.cgroup_caps import Caps, Cgroups, DiskCap
from codehub.runtimes.process.keeper_request import LAUNCH_WITHIN_SECONDS, KeeperRequest
from codehub.runtimes.process.netlink import own_networks
from codehub.runtimes.process.network import HELPER_UID_OFFSET, RESOLVER, Uplink
from codehub.runtimes.process.sandbox import IsolationBarriers, sandboxed_command, unsandboxed_command
from codehub.runtimes.process.stale_processes import Isolation
from codehub.runtimes.process.state_directory import StateDirectory

logger = structlog.get_logger(__name__)


@dataclass(frozen=True)
class RuntimeConfig:
    """Configuration that all workspaces of one runtime share."""

    tools: Path
    data_dir: Path
    egress: Egress
    stop_grace: float
    port_links: PortLinks | None = None
    """None if IDEs get no links to ports."""
    secrets: Sequence[Path] = ()
    """Files that no workspace may see, in any directory."""
    gateway_group: int | None = None

    def environment_variables(self, workspace_id: str) -> dict[str, str]:
        return {} if self.port_links is None else self.port_links.environment_variables(workspace_id)


def build_request(
    spec: WorkloadSpec, barriers: IsolationBarriers, directory: StateDirectory, config: RuntimeConfig
) -> KeeperRequest:
    uid = spec.uid if os.geteuid() == 0 else None
    spec = replace(spec, home=spec.home.absolute(), uid=uid)
    command = (
        sandboxed_command(barriers, spec, directory, config.tools, config.data_dir, config.secrets)
        if barriers.isolation is Isolation.SANDBOX
        else unsandboxed_command(barriers, spec, directory, config.tools)
    )
    return KeeperRequest(
        directory=str(directory.path),
        workspace_id=spec.workspace_id,
        op_id=spec.op_id,
        image=spec.image.name,
        ready_path=spec.image.ready_path,
        isolation=barriers.isolation.value,
        uid=uid,
        home=str(spec.home),
        argv=command.argv,
        options=command.options,
        seccomp=barriers.seccomp if spec.image.seccomp == "default" else "",
        env=command.env | config.environment_variables(spec.workspace_id),
        cwd=command.cwd,
        umask=command.umask,
        pids=spec.image.pids,
        memory_bytes=spec.image.memory_bytes,
        grace_seconds=config.stop_grace,
        executions=str(config.data_dir / recorded_commands.DIRECTORY / spec.workspace_id),
        sandbox_depth=command.sandbox_depth,
        launch_until=time.monotonic() + LAUNCH_WITHIN_SECONDS,
        files=command.files,
        groups=cgroup_caps.group_settings(
            barriers.cgroups, group_name(directory), _caps(spec, barriers, command.sandbox_depth)
        ),
        keeper_groups=list(barriers.cgroups.keeper_groups),
        uplink=_uplink(barriers, uid, config.egress),
        gateway_group=config.gateway_group,
    )


def _caps(spec: WorkloadSpec, barriers: IsolationBarriers, sandbox_depth: int) -> Caps:
    """Return the caps.

    The sandbox's own processes and the network helper do not count as the workspace's.
    """
    helpers = 0 if barriers.slirp is None else 1
    pids = min(spec.image.pids + sandbox_depth + helpers, MOST_PIDS)
    return Caps(spec.image.cpus, spec.image.memory_bytes, pids, _disk_cap(spec, barriers.cgroups))


def _disk_cap(spec: WorkloadSpec, cgroups: Cgroups) -> DiskCap | None:
    if spec.image.disk_bandwidth is None:
        return None
    disk = disk_of(spec.home)
    if disk is None or cgroups.io_parent is None:
        why = "its home is not on a single disk" if disk is None else "no control group can limit disks"
        logger.warning("the disk bandwidth is not limited", id=spec.workspace_id, reason=why)
        return None
    return DiskCap(disk.number, spec.image.disk_bandwidth)


def _uplink(barriers: IsolationBarriers, uid: int | None, egress: Egress) -> Uplink | None:
    if barriers.slirp is None:
        return None
    helper = None if uid is None else uid + HELPER_UID_OFFSET
    return Uplink(barriers.slirp, helper, routing_rules(egress, own_networks(), RESOLVER))


def group_name(directory: StateDirectory) -> str:
    """Return the name of the control group, unique among all installations on this machine."""
    digest = hashlib.sha256(os.fsencode(directory.path)).hexdigest()[:12]
    return f"{directory.path.name}-{digest}"


def group_directories(cgroups: Cgroups, directory: StateDirectory) -> list[str]:
    return sorted({f"{parent}/{group_name(directory)}" for parent in cgroups.every_parent})
