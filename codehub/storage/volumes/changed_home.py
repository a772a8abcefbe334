"""Check that a home has not changed since it was archived, before it is removed (ADR 0015)."""

import time
from collections.abc import Sequence
from pathlib import Path

from codehub.storage.child_processes import PIPE, last_line, spawn
from codehub.storage.errors import HomeChanged, StorageProblem


def check_unchanged(home: Path, since: float, locks: Sequence[int]) -> None:
    """Raise HomeChanged if any content, name, mode or owner in the home has changed since then.

    No program can set the time of a change (ctime). A ctime in the future comes from a clock that
    was set back, not from a change.
    """
    later, earlier = f"@{since:.6f}", f"@{time.time():.6f}"
    command: list[str | Path] = [
        "find",
        home,
        "-newerct",
        later,
        "!",
        "-newerct",
        earlier,
        "-print0",
        "-quit",
    ]
    child = spawn(command, locks=locks, stdout=PIPE)
    found, stderr = child.communicate()
    if child.returncode != 0:
        raise StorageProblem(f"the home cannot be compared with its archive: {last_line(stderr)}")
    if found:
        path = found.rstrip(b"\0").decode("utf-8", "backslashreplace").removeprefix(f"{home}/")
        raise HomeChanged(
            f"the home has changed since it was archived ({path}), and stays: is a process still using it?"
        )
