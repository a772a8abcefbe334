"""Starting, finding and ending the processes of embedded servers."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from codehub.embedded.server_account import Account, plain_environment
from codehub.host.child_process import die_with_parent
from codehub.host.processes import parent_of


def spawn(
    command: Sequence[str | Path],
    *,
    log: Path,
    death_signal: signal.Signals,
    account: Account,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Starts a child in a session of its own, so that a terminal's Ctrl-C reaches only its supervisor."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [str(part) for part in command], cwd="/", stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, env=environment or plain_environment(), start_new_session=True,
            preexec_fn=die_with_parent(death_signal),
            user=account.switch_uid, group=account.switch_gid, extra_groups=[] if account.switch else None,
        )  # fmt: skip


def processes_in_directory(directory: Path, program: str) -> list[int]:
    """Process ids of a program whose working directory is this one: how a server left behind is recognised.

    Both PostgreSQL's and Redis' processes stay in their data directory; a pid file may name a recycled id.
    """
    wanted = directory.resolve()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it ended while we looked, or belongs to someone else
            if (entry / "cwd").readlink() == wanted and (entry / "comm").read_text().strip() == program:
                found.append(int(entry.name))
    return found


def top_processes(pids: Sequence[int]) -> list[int]:
    """Those whose parent is not one of them: a server's first process answers for its helpers."""
    return [pid for pid in pids if parent_of(pid) not in pids]


class Child(Protocol):
    """What ending a process takes; `subprocess.Popen` is one."""

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, number: signal.Signals, /) -> None: ...


def end_child(process: Child, signals: Sequence[tuple[signal.Signals, float]]) -> None:
    """Ends our own child: each signal in turn, with the seconds it has to work."""
    for number, patience in signals:
        if process.poll() is not None:
            return
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)


def end_processes(find: Callable[[], list[int]], signals: Sequence[tuple[signal.Signals, float]]) -> bool:
    """Ends processes that are not our children; True when none is left."""
    for number, patience in signals:
        for pid in top_processes(find()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if wait_until(lambda: not find(), patience):
            return True
    return not find()


def wait_until(condition: Callable[[], bool], seconds: float, *, every: float = 0.02) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True


def tail(path: Path, lines: int = 12) -> str:
    """The last lines of a log, for an error message."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""
