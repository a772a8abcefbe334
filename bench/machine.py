"""What the machine does while something is measured: CPU time, memory, and how quiet the rest is."""

import os
import platform
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

TICKS = os.sysconf("SC_CLK_TCK")
KERNEL = 2
"""The parent of kernel threads: what they do (write-back, interrupts) is work of whoever is measured."""
NOISE_PERCENT = 8.0
TRIES = 3


def tree(pids: Sequence[int]) -> list[int]:
    """The given processes and all their descendants."""
    seen: list[int] = []
    todo = list(pids)
    while todo:
        pid = todo.pop()
        seen.append(pid)
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            todo.extend(int(child) for child in (_read(task) or "").split())
    return seen


def cpu_seconds(pids: Sequence[int]) -> float:
    """CPU time that these processes and their living descendants have used."""
    return sum(sum(fields[11:13]) for pid in tree(pids) if (fields := _stat(pid))) / TICKS


def cores() -> tuple[int, int]:
    """The core of load generator and upstream, and the core that the proxy under test has for itself."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[-1]


def _nobody() -> list[int]:
    return []


class Quiet:
    """Keeps samples apart from what others do on the machine, with a bounded patience for a whole run."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self.also_own: Callable[[], list[int]] = _nobody
        """Processes that belong to what is measured and are no descendants of ours."""

    def sample(self, measure: Callable[[], T], end: Callable[[], None] = lambda: None) -> tuple[T, float]:
        """What was measured, and the CPU that others took meanwhile (in % of one core); the quietest try.

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
            if noise < NOISE_PERCENT or self._patience <= 0:
                break
            self._patience -= took
        return min(tries, key=lambda one: one[1])

    def wait(self) -> None:
        """Returns when others have used less than 5 % of a core for two seconds, or patience ends."""
        calm = 0
        while calm < 4 and self._patience > 0:
            before = self._foreign_cpu()
            time.sleep(0.5)
            calm = calm + 1 if self._foreign_cpu() - before < 0.025 else 0
            self._patience -= 0.0 if calm else 0.5

    def _foreign_cpu(self) -> float:
        """CPU seconds used so far by processes that are not part of this run."""
        mine = set(tree([os.getpid(), *self.also_own()]))
        total = 0
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) not in mine and (fields := _stat(int(entry.name))):
                total += (
                    0 if fields[1] == KERNEL else sum(fields[11:15])
                )  # its own, and its reaped children's
        return total / TICKS


class PeakMemory:
    """The peak of a process tree in MB. A page that several processes share counts once."""

    def __init__(self, pid: int, every: float = 0.1) -> None:
        self._pid = pid
        self._every = every
        self._peak = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def megabytes(self) -> float:
        return self._peak

    def _watch(self) -> None:
        while not self._ended.wait(self._every):
            self._peak = max(self._peak, memory_megabytes([self._pid]))


def memory_megabytes(pids: Sequence[int]) -> float:
    """What these processes and their descendants hold now. A page that several share counts once."""
    return sum(map(_proportional_kilobytes, tree(pids))) / 1024


def _proportional_kilobytes(pid: int) -> int:
    lines = (_read(Path(f"/proc/{pid}/smaps_rollup")) or "").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


@contextmanager
def no_free_memory(place: Path) -> Iterator[None]:
    """Fills free memory with pages that can be taken over at once.

    A virtual machine may give free memory back to its host, and whoever needs it next pays for getting it:
    up to half of a restore's time, by turns.
    """
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    with tempfile.TemporaryFile(dir=place, buffering=0) as hole:
        hole.truncate(int(meminfo["MemFree"].split()[0]) * 1024)
        while hole.read(1 << 20):
            pass
        yield


def facts() -> list[tuple[str, str]]:
    """What a reader has to know about the machine and the programs."""
    found = [("date", time.strftime("%Y-%m-%d")), ("machine", f"{_cpu_model()}, {os.cpu_count()} cores")]
    found += [
        ("system", f"{_distribution()}, Linux {platform.release()}"),
        ("Python", platform.python_version()),
    ]
    commands = {
        "nginx": ["-v"],
        "wrk": ["-v"],
        "tar": ["--version"],
        "zstd": ["--version"],
        "node": ["--version"],
    }
    found += [(name, _first_line([name, *flags])) for name, flags in commands.items()]
    return [*found, ("CodeHub", version())]


def version() -> str:
    return _first_line(["git", "describe", "--always", "--dirty"])


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except OSError:
        return "missing"
    return (done.stdout + done.stderr).strip().partition("\n")[0]


def _stat(pid: int) -> list[int]:
    """The numbers of /proc/PID/stat behind the state (with 0 in its place); empty when it has ended."""
    words = (_read(Path(f"/proc/{pid}/stat")) or ")").rpartition(")")[2].split()
    return [0, *map(int, words[1:])] if words else []


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        return None


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine()
    )


def _distribution() -> str:
    return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
