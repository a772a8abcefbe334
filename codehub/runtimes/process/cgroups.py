"""A workspace's control groups: made before its first process, removed after the last one.

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
"""Groups to make, by directory, and what to write into the files of each."""

_REMOVE_SECONDS = 2.0
_OPTIONAL = ("memory.swap.max", "memory.memsw.limit_in_bytes", "cgroup.max.depth", "cgroup.max.descendants")
"""Kernels may have no account of swap (the cap is on memory alone then), or no limit to groups in groups."""


_CAPPED_BY_PARENT = "cpu.cfs_quota_us"
"""Version 1 refuses more than a group above has, whose smaller cap then holds for all below it."""
_REFUSALS = (errno.EINVAL, errno.ERANGE)


class LimitRejected(OSError):  # noqa: N818 - a fact, not a fault
    """The kernel does not take a cap as it is."""


def create(groups: GroupSettings) -> None:
    _, troubles = create_available(groups)
    for trouble in troubles:
        raise trouble


def create_available(groups: GroupSettings) -> tuple[GroupSettings, list[OSError]]:
    """The groups that there are now, with the settings that hold in each; and what went wrong with others."""
    made: GroupSettings = {}
    troubles: list[OSError] = []
    for directory, settings in groups.items():
        try:
            Path(directory).mkdir(exist_ok=True)
        except OSError as error:
            troubles.append(error)
            continue
        made[directory] = {}
        for name, value in settings.items():
            try:
                if _is_set(Path(directory, name), value):
                    made[directory][name] = value
            except OSError as error:
                troubles.append(error)
    return made, troubles


def _is_set(file: Path, value: str) -> bool:
    if file.name in _OPTIONAL and not file.exists():
        return False
    try:
        file.write_text(value)
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise OSError(error.errno, error.strerror, str(file)) from error
        if file.name != _CAPPED_BY_PARENT:
            raise LimitRejected(f"this machine takes no cap of {value} (for {file.name})") from error
    return True


def join(groups: Iterable[str], pid: int = 0) -> None:
    """Move a process (0: this one) to the innermost groups. Its children are born there."""
    directories = [Path(directory) for directory in groups]
    outer = {directory.parent for directory in directories}
    for directory in directories:
        if directory not in outer:
            (directory / "cgroup.procs").write_text(str(pid))


def members(groups: Iterable[str]) -> set[ProcessId]:
    """Who is in the groups, or in any below."""
    files = [group / "cgroup.procs" for directory in groups for group in _with_all_below(directory)]
    pids = {int(pid) for file in files for pid in _lines(file)}
    return {process for pid in pids if (process := ProcessId.of(pid)) is not None}


def _with_all_below(directory: str) -> list[Path]:
    """A group and those that the workspace may have made in it, outermost first.

    Only where its user is ours can it make any, and then take our permissions away.
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
    """Nobody is born any more, so that whoever is killed now was the last of them."""
    for directory in _outermost(groups):
        with contextlib.suppress(FileNotFoundError):
            if Path(directory, "pids.max").exists():
                Path(directory, "pids.max").write_text("0")


def _outermost(groups: Iterable[str]) -> list[str]:
    """Those with the caps, out of a workspace's reach: below them it may take our permissions away."""
    directories = list(groups)
    return [directory for directory in directories if str(Path(directory).parent) not in directories]


def remove(groups: Iterable[str]) -> None:
    """Remove groups that are empty, or about to be: a process leaves a little after its end is seen."""
    deadline = time.monotonic() + _REMOVE_SECONDS
    for directory in groups:
        while not _is_removed(directory):
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), directory)
            time.sleep(0.002)


def sweep(parents: Iterable[str], older_than: float) -> None:
    """Remove empty groups that nobody will ask for again: their workspace's directory went without us.

    One that is made at this moment is empty as well, but young.
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
    """How many processes the kernel has ended because a group was full."""
    names = ("memory.events", "memory.oom_control")
    files = [Path(directory, name) for directory in _outermost(groups) for name in names]
    counts = [line.split() for file in files for line in _lines(file)]
    return sum(int(words[1]) for words in counts if words[0] == "oom_kill")


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        # Removed since it was opened; or a group of threads, whose processes are told by one above it.
        if error.errno not in (errno.ENODEV, errno.EOPNOTSUPP):
            raise
        return []
