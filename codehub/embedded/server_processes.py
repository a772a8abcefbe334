"""Processes of embedded servers: their start, search and end."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from codehub.embedded.server_account import ServerAccount, plain_environment
from codehub.host.parent_death import die_with_parent
from codehub.host.processes import parent_of


def spawn(
    command: Sequence[str | Path],
    *,
    log: Path,
    death_signal: signal.Signals,
    account: ServerAccount,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a child in a new session, so that a terminal's Ctrl-C reaches only the supervisor."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [str(part) for part in command], cwd="/", stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, env=environment or plain_environment(), start_new_session=True,
            preexec_fn=die_with_parent(death_signal),
            user=account.switch_uid, group=account.switch_gid, extra_groups=[] if account.switch else None,
        )  # fmt: skip


def processes_in_directory(directory: Path, program: str) -> list[int]:
    """Return the processes of a program with this working directory, to find orphaned servers.

    PostgreSQL and Redis stay in their data directory. A pid file may name a recycled process id.
    """
    wanted = directory.resolve()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it has ended meanwhile, or belongs to another user
            if (entry / "cwd").readlink() == wanted and (entry / "comm").read_text().strip() == program:
                found.append(int(entry.name))
    return found


def top_processes(pids: Sequence[int]) -> list[int]:
    """Return the processes whose parent is not in the list.

    A server's main process ends its helpers.
    """
    return [pid for pid in pids if parent_of(pid) not in pids]


class PopenLike(Protocol):
    """The methods of `subprocess.Popen` that `end_child` uses."""

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, number: signal.Signals, /) -> None: ...


def end_child(process: PopenLike, signals: Sequence[tuple[signal.Signals, float]]) -> None:
    """End a child process: send each signal in turn, and wait for the given seconds."""
    for number, seconds in signals:
        if process.poll() is not None:
            return
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)


def end_processes(find: Callable[[], list[int]], signals: Sequence[tuple[signal.Signals, float]]) -> bool:
    """End processes that are not our children. Return whether all have ended."""
    for number, seconds in signals:
        for pid in top_processes(find()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if wait_until(lambda: not find(), seconds):
            return True
    return not find()


def wait_until(condition: Callable[[], bool], seconds: float, *, every: float = 0.02) -> bool:
    """Wait until the condition holds. Return False if it does not within some seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True


def tail(path: Path, lines: int = 12) -> str:
    """Return the last lines of a log, for an error message."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""
