"""Caps of a workspace: where control groups can be created (ADR 0011), and their settings."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from codehub.runtimes.process.cgroups import GroupSettings

CONTROLLERS = ("cpu", "memory", "pids")
_PARENT = "codehub"
_KEEPERS = "keepers"
_SYSTEMD_HIERARCHIES = ("name=systemd", "")
"""The hierarchies in which systemd, depending on its version, tracks the processes of a service."""
_PERIOD = 100_000
_SMALLEST_QUOTA = 1_000
_GROUPS_IN_GROUPS = {"cgroup.max.depth": "16", "cgroup.max.descendants": "256"}
"""Enough for legitimate use, and few enough to be removed quickly."""

_Mounts = dict[str, tuple[Path, str]]


@dataclass(frozen=True)
class Caps:
    cpus: float
    memory_bytes: int
    pids: int
    disk: DiskCap | None = None


@dataclass(frozen=True)
class DiskCap:
    """Bandwidth of a disk (`major:minor`), in bytes per second, for reads and for writes."""

    number: str
    bandwidth: int


@dataclass(frozen=True)
class Cgroups:
    """Where groups can be created: a directory per usable controller (one for all in version 2)."""

    version: int
    parents: Mapping[str, str]
    why_not_all: str = ""
    io_parent: str | None = None
    """Where groups that limit a disk's bandwidth can be created."""
    cpuacct_parent: str | None = None
    """Where groups of version 1 can be created that count CPU time. In version 2 every group does."""
    keeper_groups: tuple[str, ...] = ()
    """Groups for keepers outside of CodeHub's service, whose processes systemd ends with the
    service."""

    @property
    def every_parent(self) -> set[str]:
        others = (self.io_parent, self.cpuacct_parent)
        return {*self.parents.values(), *(parent for parent in others if parent is not None)}


NO_CGROUPS = Cgroups(2, {})


def find_cgroups(
    mountinfo: str | None = None, own: str | None = None, is_root: bool | None = None
) -> Cgroups:
    """Return where this process may create groups.

    Root creates them at the top of the hierarchy, so that they outlive the service that CodeHub
    runs as. Other users can use only what was delegated to them.
    """
    mounts = _mounts(_read_text("/proc/self/mountinfo") if mountinfo is None else mountinfo)
    paths = _own_paths(_read_text("/proc/self/cgroup") if own is None else own)
    is_root = os.geteuid() == 0 if is_root is None else is_root
    found = _find(mounts, paths, is_root)
    found = replace(
        found,
        io_parent=_find_io(found, mounts, paths, is_root),
        cpuacct_parent=None if found.version == 2 else _find_v1_parent("cpuacct", mounts, paths, is_root),
    )
    return replace(found, keeper_groups=_keeper_groups(found, mounts, is_root))


def _find(mounts: _Mounts, paths: Mapping[str, str], is_root: bool) -> Cgroups:
    old = {controller: mounts[controller] for controller in CONTROLLERS if controller in mounts}
    if not old and "" not in mounts:
        return Cgroups(2, {}, "no control groups are mounted")
    if not old:
        mount, inside = mounts[""]
        return _find_v2(mount, _within(mount, inside, paths.get("", "/")), is_root)
    tops = {
        controller: mount if is_root else _within(mount, inside, paths.get(controller, "/"))
        for controller, (mount, inside) in old.items()
    }
    return _find_v1(tops)


def _find_io(found: Cgroups, mounts: _Mounts, paths: Mapping[str, str], is_root: bool) -> str | None:
    if found.version == 1:
        return _find_v1_parent("blkio", mounts, paths, is_root)
    with contextlib.suppress(OSError):
        return next((parent for parent in found.parents.values() if _delegates_io(Path(parent))), None)
    return None


def _find_v1_parent(controller: str, mounts: _Mounts, paths: Mapping[str, str], is_root: bool) -> str | None:
    """Return where groups of an optional controller can be created."""
    if controller not in mounts:
        return None
    mount, inside = mounts[controller]
    top = mount if is_root else _within(mount, inside, paths.get(controller, "/"))
    return str(top / _PARENT) if _has_parent(top) else None


def _delegates_io(parent: Path) -> bool:
    """Return whether groups below can limit I/O.

    For version 2, where all controllers have one parent.
    """
    offered = (parent.parent / "cgroup.controllers").read_text().split()
    return "io" in offered and all(_delegate(group, ["io"]) for group in (parent.parent, parent))


def _keeper_groups(found: Cgroups, mounts: _Mounts, is_root: bool) -> tuple[str, ...]:
    if not is_root:
        delegated = set(found.parents.values()) if found.version == 2 else set()
        return tuple(f"{parent}/{_KEEPERS}" for parent in delegated)
    tops = [mounts[name][0] for name in _SYSTEMD_HIERARCHIES if name in mounts]
    return tuple(str(top / _PARENT / _KEEPERS) for top in tops if _has_parent(top))


def _has_parent(top: Path) -> bool:
    with contextlib.suppress(OSError):
        (top / _PARENT).mkdir(exist_ok=True)
        return True
    return False


def _find_v1(tops: Mapping[str, Path]) -> Cgroups:
    parents: dict[str, str] = {}
    errors = [f"{controller} is not mounted" for controller in CONTROLLERS if controller not in tops]
    for controller, top in tops.items():
        try:
            (top / _PARENT).mkdir(exist_ok=True)
            parents[controller] = str(top / _PARENT)
        except OSError as error:
            errors.append(f"{controller}: {error}")
    return Cgroups(1, parents, "; ".join(errors))


def _find_v2(mount: Path, own: Path, is_root: bool) -> Cgroups:
    """Find the nearest group above that can delegate its controllers. One with processes cannot."""
    groups = [mount] if is_root else [own, *(above for above in own.parents if above.is_relative_to(mount))]
    found, errors = Cgroups(2, {}, "no usable group"), []
    for group in groups:
        try:
            enabled = _enable(group)
        except OSError as error:
            errors.append(str(error))
            continue
        missing = [controller for controller in CONTROLLERS if controller not in enabled]
        if len(enabled) > len(found.parents):
            parents = {controller: str(group / _PARENT) for controller in enabled}
            found = Cgroups(2, parents, f"no {', '.join(missing)} in {group}" if missing else "")
    return found if found.parents else Cgroups(2, {}, "; ".join(errors) or found.why_not_all)


def _enable(group: Path) -> list[str]:
    """Delegate controllers to the groups of workspaces; return those that could be."""
    parent = group / _PARENT
    if not os.access(group / "cgroup.procs", os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(group))
    offered = [name for name in (group / "cgroup.controllers").read_text().split() if name in CONTROLLERS]
    delegated = _delegate(group, offered)
    if not delegated:
        raise OSError(errno.EBUSY, "its controllers cannot be delegated", str(group))
    parent.mkdir(exist_ok=True)
    return _delegate(parent, delegated)


def _delegate(group: Path, controllers: Iterable[str]) -> list[str]:
    """Enable controllers for the groups below; return those that they have afterwards."""
    switch = group / "cgroup.subtree_control"
    for controller in controllers:
        if controller not in switch.read_text().split():
            with contextlib.suppress(OSError):  # the result is read back
                switch.write_text(f"+{controller}")
    return [controller for controller in controllers if controller in switch.read_text().split()]


def group_settings(cgroups: Cgroups, name: str, caps: Caps) -> GroupSettings:
    """Return the groups of a workspace, with the settings that cap it."""
    groups: GroupSettings = {}
    for controller, parent in cgroups.parents.items():
        settings = _v2_settings if cgroups.version == 2 else _v1_settings
        groups.setdefault(f"{parent}/{name}", {}).update(settings(controller, caps))
    if cgroups.cpuacct_parent is not None:
        groups.setdefault(f"{cgroups.cpuacct_parent}/{name}", {})
    if caps.disk is not None and cgroups.io_parent is not None:
        limits = _disk_settings(cgroups.version, caps.disk)
        groups.setdefault(f"{cgroups.io_parent}/{name}", {}).update(limits)
    return _with_group_for_processes(groups) if cgroups.version == 2 else groups


def _with_group_for_processes(groups: GroupSettings) -> GroupSettings:
    """Add a group for the processes below each group with caps.

    A workspace that runs as our own user may create groups, and write to the group that it sees as
    the top of the hierarchy. So its caps must not be in that group.
    """
    capped = {directory: settings | _GROUPS_IN_GROUPS for directory, settings in groups.items()}
    return capped | {f"{directory}/run": {} for directory in groups}


def _quota(caps: Caps) -> int:
    return max(_SMALLEST_QUOTA, round(caps.cpus * _PERIOD))


def _v2_settings(controller: str, caps: Caps) -> dict[str, str]:
    return {
        "cpu": {"cpu.max": f"{_quota(caps)} {_PERIOD}"},
        "memory": {"memory.max": str(caps.memory_bytes), "memory.swap.max": "0"},
        "pids": {"pids.max": str(caps.pids)},
    }[controller]


def _v1_settings(controller: str, caps: Caps) -> dict[str, str]:
    memory = str(caps.memory_bytes)
    return {
        "cpu": {"cpu.cfs_period_us": str(_PERIOD), "cpu.cfs_quota_us": str(_quota(caps))},
        "memory": {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory},
        "pids": {"pids.max": str(caps.pids)},
    }[controller]


def _disk_settings(version: int, disk: DiskCap) -> dict[str, str]:
    rate = disk.bandwidth
    if version == 2:
        return {"io.max": f"{disk.number} rbps={rate} wbps={rate}"}
    names = ("blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device")
    return dict.fromkeys(names, f"{disk.number} {rate}")


def groups_of(pid: int) -> list[str]:
    """Return the groups of a process, as directories, without the root of each hierarchy."""
    mounts = _mounts(_read_text("/proc/self/mountinfo"))
    paths = _own_paths(_read_text(f"/proc/{pid}/cgroup"))
    return [
        str(_within(*mounts[name], path)) for name, path in paths.items() if name in mounts and path != "/"
    ]


def _mounts(mountinfo: str) -> _Mounts:
    """Return the mount point of each controller and the part of its hierarchy there.

    The hierarchy of version 2 has the name "".
    """
    found: _Mounts = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(maxsplit=2)
        inside, mount = before.split()[3:5]
        names = options.split(",") if kind == "cgroup" else [""] if kind == "cgroup2" else []
        for name in names:
            found.setdefault(name, (Path(mount), inside))
    return found


def _own_paths(text: str) -> dict[str, str]:
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        paths.update(dict.fromkeys(names.split(","), path))
    return paths


def _within(mount: Path, inside: str, path: str) -> Path:
    """Return a group's directory, even if only a part of the hierarchy is mounted."""
    below = path.removeprefix(inside) if inside != "/" else path
    return mount / below.strip("/")


def _read_text(path: str) -> str:
    return Path(path).read_text()
