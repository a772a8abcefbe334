"""Whether a home is still as it was archived. Asked before it is removed: nothing else has what it misses."""

import time
from collections.abc import Sequence
from pathlib import Path

from codehub.storage.child_processes import PIPE, last_words, spawn
from codehub.storage.errors import HomeChanged, StorageProblem


def check_unchanged(home: Path, since: float, locks: Sequence[int]) -> None:
    """Raise when anything in the home has changed since then, in content, name, mode or owner.

    No program can set the time of a change. One that lies in the future tells of a clock that was put back
    before, not of a change.
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
    found, said = child.communicate()
    if child.returncode != 0:
        raise StorageProblem(f"the home cannot be compared with its archive: {last_words(said)}")
    if found:
        path = found.rstrip(b"\0").decode("utf-8", "backslashreplace").removeprefix(f"{home}/")
        raise HomeChanged(
            f"the home has changed since it was archived ({path}), and stays: is something at work in it?"
        )
