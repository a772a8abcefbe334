"""Start of `codehub up` until ready, its CPU and memory, and the start of the command line.

The peer is an earlier checkout with its own `.venv`. CODEHUB_BENCH_BEFORE names it. Both run in
turns.
"""

import os
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from bench import table
from bench.machine import cpu_seconds, memory_megabytes
from bench.sampler import Sampler
from tests.services import System, processes_of

READY_SECONDS = 2.0
IDLE_MEGABYTES = 200.0
ANSWER_SECONDS = 0.3
STARTED_SECONDS = 5.0
"""Time for the work that parts still do after they first answer."""
IDLE_SECONDS = 40.0
"""Time after which the connection pools have closed the connections of the start."""
ROOT = Path(__file__).parents[1]

Figures = dict[str, list[float]]


class _Checkout(System):
    """System that runs the code of one checkout, on an existing data directory."""

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

    def processes(self) -> list[int]:
        return processes_of(self.data_dir)

    def seconds_to_run(self, option: str) -> float:
        began = time.perf_counter()
        self.command(option).communicate()
        return time.perf_counter() - began


def measure(sampler: Sampler, rounds: int) -> None:
    checkouts = {"now": ROOT}
    if before := os.environ.get("CODEHUB_BENCH_BEFORE"):
        checkouts = {"before": Path(before), **checkouts}
    systems = {name: _Checkout(path) for name, path in checkouts.items()}
    figures: dict[str, Figures] = {name: {} for name in systems}
    try:
        for system in systems.values():
            system.start()
            system.stop()
        for _ in range(rounds):
            for name, system in systems.items():
                _sample(system, sampler, figures[name])
    finally:
        for system in systems.values():
            system.close()
    _show(figures)


def _sample(system: _Checkout, sampler: Sampler, figures: Figures) -> None:
    def record(name: str, measure: Callable[[], float]) -> None:
        figures.setdefault(name, []).append(measure())

    sampler.measured_processes = system.processes
    sampler.wait()
    record("up to ready, seconds", system.seconds_to_ready)
    time.sleep(STARTED_SECONDS)
    record("CPU of a start, seconds", lambda: cpu_seconds(system.processes()))
    time.sleep(IDLE_SECONDS)
    record("memory when idle, MB", lambda: memory_megabytes(_root_processes(system)))
    system.stop()
    for option in ("--help", "version"):
        sampler.wait()
        record(f"codehub {option}, seconds", lambda option=option: system.seconds_to_run(option))  # type: ignore[misc]


def _root_processes(system: _Checkout) -> list[int]:
    """Return the roots of the system's process trees: their parents are not of the system."""
    pids = set(system.processes())
    return [pid for pid in pids if _parent(pid) not in pids]


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _show(figures: dict[str, Figures]) -> None:
    header = ("", *(f"{name} (min–max)" for name in figures), "ratio")
    rows = []
    for name in figures["now"]:
        medians = [statistics.median(values[name]) for values in figures.values()]
        ratio = table.ratio(medians[-1], medians[0]) if len(medians) > 1 else "–"
        rows.append([name, *(table.median_and_range(values[name]) for values in figures.values()), ratio])
    table.print_table("codehub up", header, rows)
    now = {name: statistics.median(values) for name, values in figures["now"].items()}
    for name, limit in (
        ("up to ready, seconds", READY_SECONDS),
        ("memory when idle, MB", IDLE_MEGABYTES),
        ("codehub --help, seconds", ANSWER_SECONDS),
        ("codehub version, seconds", ANSWER_SECONDS),
    ):
        table.print_bound(f"{name}: at most {limit:g}", f"{now[name]:.2f}", now[name] <= limit)
