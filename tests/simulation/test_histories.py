"""A thousand histories of fifty workspaces and two coordinators, each with its own faults.

`make test` lives through a quarter of them, `make test-simulation` through all.
"""

import os
import subprocess
import sys
from itertools import pairwise

import pytest

HISTORIES = int(os.environ.get("CODEHUB_HISTORIES", "1000"))
FIRST = int(os.environ.get("CODEHUB_FIRST_SEED", "0"))


def live_through(first: int, last: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.simulation", f"{first}-{last}"]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONHASHSEED": "0"}
    )


def told(processes: "list[subprocess.Popen[str]]") -> list[str]:
    try:
        return [line for process in processes for line in process.communicate()[0].splitlines()]
    finally:
        for process in processes:
            process.kill()


@pytest.mark.timeout(900)
def test_every_history_keeps_the_contracts_and_converges() -> None:
    parts = os.cpu_count() or 1
    bounds = [FIRST + HISTORIES * part // parts for part in range(parts + 1)]
    lines = told([live_through(a, b - 1) for a, b in pairwise(bounds) if a < b])
    broken = [line for line in lines if " broken " in line]
    assert not broken, "\n".join(broken)
    assert len(lines) == HISTORIES


def test_a_history_repeats_itself() -> None:
    """So that a seed that fails can be looked at: the same story, in another process, after others."""
    alone, after_others = told([live_through(7, 7)]), told([live_through(4, 7)])
    assert alone[0] == after_others[-1]
