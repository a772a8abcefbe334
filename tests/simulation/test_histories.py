"""Histories of fifty workspaces and two coordinators, each with its own faults (ADR 0008).

`make test` runs a window of the thousand, which the commit selects; `make test-all` runs all.
"""

import os
import subprocess
import sys
from itertools import pairwise

import pytest

from tests.selection import EVERYTHING, SEED

ALL = 1000
WINDOW = 80
FIRST, LAST = (0, ALL - 1) if EVERYTHING else (SEED % (ALL - WINDOW), SEED % (ALL - WINDOW) + WINDOW - 1)
PROCESSES = (os.cpu_count() or 1) if EVERYTHING else 1
"""`make test` leaves the other cores to other layers."""


def start_histories(first: int, last: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.simulation", f"{first}-{last}"]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONHASHSEED": "0"}
    )


def output_lines(processes: "list[subprocess.Popen[str]]") -> list[str]:
    try:
        return [line for process in processes for line in process.communicate()[0].splitlines()]
    finally:
        for process in processes:
            process.kill()


@pytest.mark.timeout(1800)
def test_every_history_keeps_the_contracts_and_converges(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(
            f"\nhistories {FIRST} to {LAST} of {ALL} (python -m tests.simulation SEED prints one)",
            file=sys.stderr,
        )
    histories = LAST - FIRST + 1
    bounds = [FIRST + histories * part // PROCESSES for part in range(PROCESSES + 1)]
    lines = output_lines([start_histories(a, b - 1) for a, b in pairwise(bounds)])
    broken = [line for line in lines if " broken " in line]
    assert not broken, "\n".join(broken)
    assert len(lines) == histories


def test_a_history_repeats_itself() -> None:
    """A failing seed can be debugged: it gives the same events in another process, after others."""
    alone, after_another = output_lines([start_histories(7, 7)]), output_lines([start_histories(6, 7)])
    assert alone[0] == after_another[-1]
