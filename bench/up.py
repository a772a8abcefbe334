"""`codehub up` from the command to ready, what it costs, and how fast the command line answers.

The peer is an earlier checkout with its own `.venv`, named by CODEHUB_BENCH_BEFORE: both run in turns.
"""

import os
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from bench import table
from bench.machine import Quiet, cpu_seconds, memory_megabytes
from tests.services import System, processes_of

READY_SECONDS = 2.0
IDLE_MEGABYTES = 200.0
ANSWER_SECONDS = 0.3
STARTED_SECONDS = 5.0
"""For what parts still do once they answer."""
IDLE_SECONDS = 40.0
"""After which the pools have closed the connections of the start."""
HERE = Path(__file__).parents[1]

Measured = dict[str, list[float]]


class _Checkout(System):
    """The system of one checkout, on a data directory that exists."""

    def __init__(self, checkout: Path) -> None:
        super().__init__({"GATEWAY_WORKERS": "2"})
        self.python = checkout / ".venv" / "bin" / "python"
        self._checkout = checkout

    def command(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [str(self.python), "-m", "codehub", *arguments], env=self.environment(), text=True,
            cwd=self._checkout, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip

    def seconds_to_ready(self) -> float:
        began = time.perf_counter()
        self.start()
        return time.perf_counter() - began

    def own_processes(self) -> list[int]:
        return processes_of(self.data_dir)

    def seconds_of(self, option: str) -> float:
        began = time.perf_counter()
        self.command(option).communicate()
        return time.perf_counter() - began


def measure(quiet: Quiet, rounds: int) -> None:
    checkouts = {"now": HERE}
    if before := os.environ.get("CODEHUB_BENCH_BEFORE"):
        checkouts = {"before": Path(before), **checkouts}
    systems = {name: _Checkout(path) for name, path in checkouts.items()}
    figures: dict[str, Measured] = {name: {} for name in systems}
    try:
        for system in systems.values():
            system.start()
            system.stop()
        for _ in range(rounds):
            for name, system in systems.items():
                _sample(system, quiet, figures[name])
    finally:
        for system in systems.values():
            system.close()
    _show(figures)


def _sample(system: _Checkout, quiet: Quiet, figures: Measured) -> None:
    def note(what: str, look: Callable[[], float]) -> None:
        figures.setdefault(what, []).append(look())

    quiet.also_own = system.own_processes
    quiet.wait()
    note("up to ready, seconds", system.seconds_to_ready)
    time.sleep(STARTED_SECONDS)
    note("CPU of a start, seconds", lambda: cpu_seconds(system.own_processes()))
    time.sleep(IDLE_SECONDS)
    note("memory when idle, MB", lambda: memory_megabytes(_roots(system)))
    system.stop()
    for option in ("--help", "version"):
        quiet.wait()
        note(f"codehub {option}, seconds", lambda option=option: system.seconds_of(option))  # type: ignore[misc]


def _roots(system: _Checkout) -> list[int]:
    """Processes whose parent is not one of them: the memory of a tree is asked for by its root."""
    own = set(system.own_processes())
    return [pid for pid in own if _parent(pid) not in own]


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _show(figures: dict[str, Measured]) -> None:
    header = ("", *(f"{name} (min–max)" for name in figures), "ratio")
    rows = []
    for what in figures["now"]:
        medians = [statistics.median(own[what]) for own in figures.values()]
        ratio = table.ratio(medians[-1], medians[0]) if len(medians) > 1 else "–"
        rows.append([what, *(table.middle(own[what]) for own in figures.values()), ratio])
    table.show("codehub up", header, rows)
    now = {what: statistics.median(values) for what, values in figures["now"].items()}
    for what, most in (
        ("up to ready, seconds", READY_SECONDS),
        ("memory when idle, MB", IDLE_MEGABYTES),
        ("codehub --help, seconds", ANSWER_SECONDS),
        ("codehub version, seconds", ANSWER_SECONDS),
    ):
        table.bound(f"{what}: at most {most:g}", f"{now[what]:.2f}", now[what] <= most)
