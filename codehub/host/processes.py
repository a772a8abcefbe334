"""Processes, as /proc shows them.

The keeper imports this module and must start fast: import little here.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_PF_EXITING = 0x4


@dataclass(frozen=True)
class ProcessId:
    """Identity of a process: PIDs are reused, but not with the same start time.

    The start time is in clock ticks since boot.
    """

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """Return the identity of the process that has this PID now, or None if it is dead."""
        stat = _stat(pid)
        return cls(pid, stat.started) if stat is not None and not stat.dead else None

    def is_alive(self) -> bool:
        return ProcessId.of(self.pid) == self

    def is_exiting(self) -> bool:
        """Return whether it has ended, or the kernel is ending it.

        The first process of a namespace ends only after all others there, which end because of it.
        """
        stat = _stat(self.pid)
        return stat is None or stat.dead or stat.started != self.started or bool(stat.flags & _PF_EXITING)

    def send(self, number: int) -> bool:
        """Signal exactly this process, never a later one with its PID; False when it is gone."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.is_alive():
                return False
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True


@dataclass(frozen=True)
class _Stat:
    parent: int
    group: int
    flags: int
    dead: bool
    started: int


def _stat(pid: int) -> _Stat | None:
    try:
        text = (PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name before the last ")" may hold anything, blanks and parentheses included.
    fields = text[text.rindex(b")") + 2 :].split()
    return _Stat(
        parent=int(fields[1]),
        group=int(fields[2]),
        flags=int(fields[6]),
        dead=_is_dead(fields[0], int(fields[17])),
        started=int(fields[19]),
    )


def _is_dead(state: bytes, threads: int) -> bool:
    """Return whether all threads have ended.

    The state is that of a zombie as soon as the main thread ends; other threads may still run.
    """
    return state == b"X" or (state == b"Z" and threads <= 1)


def set_command_line(*arguments: str) -> None:
    """Replace the arguments that `ps` shows for this process, cut to their present length."""
    fields = (PROC / "self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    text = b"".join(os.fsencode(argument) + b"\0" for argument in arguments)[: end - start - 1]
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def boot_id() -> str:
    """Return the random id that the kernel gave to this boot."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def parent_of(pid: int) -> int | None:
    """Return the PID of the parent, or None if there is no such process."""
    stat = _stat(pid)
    return None if stat is None else stat.parent


def descendants(ancestor: int) -> dict[ProcessId, int]:
    """Return every living process below `ancestor`, with its depth (a child has depth 1)."""
    stats = {pid: stat for pid in _pids() if (stat := _stat(pid)) is not None}
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    found: dict[ProcessId, int] = {}
    level, depth = children.get(ancestor, []), 1
    while level:
        found.update({ProcessId(pid, stats[pid].started): depth for pid in level if not stats[pid].dead})
        level = [child for pid in level for child in children.get(pid, [])]
        depth += 1
    return found


def has_open(pid: int, files: Collection[str]) -> bool:
    """Return whether a process has one of these files open, named as in /proc/PID/fd."""
    try:
        with os.scandir(PROC / str(pid) / "fd") as entries:
            return any(_link(entry.path) in files for entry in entries)
    except OSError:  # it has ended, or forbids this
        return False


def pipes_of(pid: int) -> set[str]:
    """Return the pipes that a process has open, named as in /proc/PID/fd; none if that is forbidden."""
    try:
        with os.scandir(PROC / str(pid) / "fd") as entries:
            return {link for entry in entries if (link := _link(entry.path)).startswith("pipe:")}
    except OSError:
        return set()


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""


def processes_of_group(leader: ProcessId) -> list[ProcessId]:
    """Return the living processes of the group of a process, which leads it and still lives."""
    stats = {pid: stat for pid in _pids() if (stat := _stat(pid)) is not None}
    if not leader.is_alive():
        return []
    return [
        ProcessId(pid, stat.started)
        for pid, stat in stats.items()
        if stat.group == leader.pid and not stat.dead
    ]


def processes_of_session(leader: ProcessId) -> list[ProcessId]:
    """Return the living processes of the session of a process that leads it, or led it."""
    found = [process for pid in _pids() if _session(pid) == leader.pid and (process := ProcessId.of(pid))]
    is_reused = any(each.pid == leader.pid and each != leader for each in found)
    return [] if is_reused else found


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def processes_of_user(uid: int) -> list[ProcessId]:
    return [process for process in _all() if _real_uid(process.pid) == uid]


def processes_with_variable(assignment: str) -> list[ProcessId]:
    """Return the processes of our own user whose environment holds `NAME=value`."""
    wanted = assignment.encode()
    return [process for process in _all() if wanted in _split(process.pid, "environ")]


def processes_with_argument(argument: str) -> list[ProcessId]:
    """Return the processes of our own user that were started with this argument."""
    wanted, uid = argument.encode(), os.geteuid()
    return [
        process
        for process in _all()
        if wanted in _split(process.pid, "cmdline") and _real_uid(process.pid) == uid
    ]


def _pids() -> Iterator[int]:
    return (int(entry) for entry in os.listdir(PROC) if entry.isdigit())  # noqa: PTH208 - names only, no objects


def _all() -> Iterator[ProcessId]:
    return (process for pid in _pids() if (process := ProcessId.of(pid)) is not None)


def _split(pid: int, name: str) -> list[bytes]:
    process = PROC / str(pid)
    try:
        text = _read_proc_file(process / name) or _read_by_threads(process, name)
    except PermissionError:
        return []
    return text.split(b"\0")


def _read_by_threads(process: Path, name: str) -> bytes:
    """Read the file of another thread. The main thread has no memory left once it has ended."""
    try:
        threads = list((process / "task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return b""
    return next(filter(None, (_read_proc_file(thread / name) for thread in threads)), b"")


def _read_proc_file(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _real_uid(pid: int) -> int | None:
    try:
        status = (PROC / str(pid) / "status").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    line = next(line for line in status.splitlines() if line.startswith(b"Uid:"))
    return int(line.split()[1])
