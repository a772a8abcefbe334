"""The control groups of a workspace.

They are created before its first process and removed after the last one.

Standard library only (see `keeper`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterable
from pathlib import Path

from codehub.host.processes import ProcessId

GroupSettings = dict[str, dict[str, str]]
"""The settings of each group to create: by directory, then by file name."""

_REMOVE_SECONDS = 2.0
_OPTIONAL = ("memory.swap.max", "memory.memsw.limit_in_bytes", "cgroup.max.depth", "cgroup.max.descendants")
"""Kernels may not account for swap (then only memory is capped), or not limit nested groups."""

_CAPPED_BY_PARENT = "cpu.cfs_quota_us"
"""Version 1 rejects a value above that of a parent group, whose smaller cap applies anyway."""
_REFUSALS = (errno.EINVAL, errno.ERANGE)


class LimitRejected(OSError):  # noqa: N818 - a fact, not a fault
    """Rejection of a cap's value by the kernel."""


def create(groups: GroupSettings) -> None:
    """Create the groups; raise the first error."""
    _, errors = create_available(groups)
    for error in errors:
        raise error


def create_available(groups: GroupSettings) -> tuple[GroupSettings, list[OSError]]:
    """Create what can be created. Return the groups with the settings in effect, and the errors."""
    created: GroupSettings = {}
    errors: list[OSError] = []
    for directory, settings in groups.items():
        try:
            Path(directory).mkdir(exist_ok=True)
        except OSError as error:
            errors.append(error)
            continue
        created[directory] = {}
        for name, value in settings.items():
            try:
                if _is_set(Path(directory, name), value):
                    created[directory][name] = value
            except OSError as error:
                errors.append(error)
    return created, errors


def _is_set(file: Path, value: str) -> bool:
    if file.name in _OPTIONAL and not file.exists():
        return False
    try:
        file.write_text(value)
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise OSError(error.errno, error.strerror, str(file)) from error
        if file.name != _CAPPED_BY_PARENT:
            raise LimitRejected(f"this machine accepts no cap of {value} (for {file.name})") from error
    return True


def join(groups: Iterable[str], pid: int = 0) -> None:
    """Move a process (0: this one) to the innermost groups. Its later children start there."""
    directories = [Path(directory) for directory in groups]
    outer = {directory.parent for directory in directories}
    for directory in directories:
        if directory not in outer:
            (directory / "cgroup.procs").write_text(str(pid))


def members(groups: Iterable[str]) -> set[ProcessId]:
    """Return the processes in the groups and in all groups below."""
    files = [group / "cgroup.procs" for directory in groups for group in _with_all_below(directory)]
    pids = {int(pid) for file in files for pid in _lines(file)}
    return {process for pid in pids if (process := ProcessId.of(pid)) is not None}


def _with_all_below(directory: str) -> list[Path]:
    """Return a group and those that the workspace created in it, outermost first.

    A workspace can create groups, and take permissions away from us, only if it runs as our own
    user.
    """
    found = [Path(directory)]
    for group in found:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if os.geteuid() != 0:
                group.chmod(0o755)
                (group / "cgroup.procs").chmod(0o644)
            found += [entry for entry in group.iterdir() if entry.is_dir()]
    return found


def forbid_forks(groups: Iterable[str]) -> None:
    """Forbid new processes, so that a kill of all members ends the group."""
    for directory in outermost(groups):
        with contextlib.suppress(FileNotFoundError):
            if Path(directory, "pids.max").exists():
                Path(directory, "pids.max").write_text("0")


def outermost(groups: Iterable[str]) -> list[str]:
    """Return the groups with the caps. A workspace cannot change these, only groups below them."""
    directories = list(groups)
    return [directory for directory in directories if str(Path(directory).parent) not in directories]


def remove(groups: Iterable[str]) -> None:
    """Remove groups that are empty or about to be.

    A process leaves its group shortly after it is reaped.
    """
    deadline = time.monotonic() + _REMOVE_SECONDS
    for directory in groups:
        while not _is_removed(directory):
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), directory)
            time.sleep(0.002)


def sweep(parents: Iterable[str], older_than: float) -> None:
    """Remove empty groups whose workspace's directory was removed by other means.

    A group that is just being created is empty as well, hence `older_than`, in seconds.
    """
    for group in [group for parent in set(parents) for group in Path(parent).iterdir()]:
        with contextlib.suppress(FileNotFoundError):
            if (
                group.is_dir()
                and time.time() - group.stat().st_mtime > older_than
                and not members([str(group)])
            ):
                _is_removed(str(group))


def _is_removed(directory: str) -> bool:
    try:
        for group in reversed(_with_all_below(directory)):
            with contextlib.suppress(FileNotFoundError):
                group.rmdir()
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def out_of_memory_kills(groups: Iterable[str]) -> int:
    """Return how many processes the kernel killed because a group reached its memory cap."""
    names = ("memory.events", "memory.oom_control")
    files = [Path(directory, name) for directory in outermost(groups) for name in names]
    counts = [line.split() for file in files for line in _lines(file)]
    return sum(int(fields[1]) for fields in counts if fields[0] == "oom_kill")


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        # The group was removed meanwhile, or it is a threaded group, whose processes a group above
        # lists.
        if error.errno not in (errno.ENODEV, errno.EOPNOTSUPP):
            raise
        return []
