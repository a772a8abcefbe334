"""Sampling on a machine that other processes share."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from bench.machine import TICKS, process_tree, stat_fields

T = TypeVar("T")

KERNEL = 2
"""Parent of kernel threads. Their work (write-back, interrupts) belongs to the measured code."""
NOISE_PERCENT = 8.0
TRIES = 3


def _no_processes() -> list[int]:
    return []


class Sampler:
    """Sampler that waits for a quiet machine and repeats noisy samples, within a time budget."""

    def __init__(self, budget: float) -> None:
        self._budget = budget
        self.measured_processes: Callable[[], list[int]] = _no_processes
        """Return processes that belong to the measured code and are not our descendants."""

    def sample(self, measure: Callable[[], T], end: Callable[[], None] = lambda: None) -> tuple[T, float]:
        """Return the result of the quietest try, and the CPU that others used (in % of one core).

        `end` is called after each try, and does not count.
        """
        tries: list[tuple[T, float]] = []
        for _ in range(TRIES):
            self.wait()
            began, before = time.monotonic(), self._foreign_cpu()
            try:
                result = measure()
                took = time.monotonic() - began
                noise = max(0.0, self._foreign_cpu() - before) / took * 100
            finally:
                end()
            tries.append((result, noise))
            if noise < NOISE_PERCENT or self._budget <= 0:
                break
            self._budget -= took
        return min(tries, key=lambda one: one[1])

    def wait(self) -> None:
        """Wait until others use less than 5 % of a core for two seconds, or the budget is spent."""
        quiet_checks = 0
        while quiet_checks < 4 and self._budget > 0:
            before = self._foreign_cpu()
            time.sleep(0.5)
            quiet_checks = quiet_checks + 1 if self._foreign_cpu() - before < 0.025 else 0
            self._budget -= 0.0 if quiet_checks else 0.5

    def _foreign_cpu(self) -> float:
        """Return the CPU seconds used so far by processes that are not part of this run."""
        own = set(process_tree([os.getpid(), *self.measured_processes()]))
        total = 0
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) in own:
                continue
            fields = stat_fields(int(entry.name))
            if fields and fields[1] != KERNEL:
                total += sum(fields[11:15])  # the process, and the children that it has reaped
        return total / TICKS
