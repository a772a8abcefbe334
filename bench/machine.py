"""CPU time and memory of processes, and a description of the machine."""

import os
import platform
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def process_tree(pids: Sequence[int]) -> list[int]:
    """Return the given processes and all their descendants."""
    seen: list[int] = []
    todo = list(pids)
    while todo:
        pid = todo.pop()
        seen.append(pid)
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            todo.extend(int(child) for child in (_read(task) or "").split())
    return seen


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return the CPU time that these processes and their living descendants have used."""
    return sum(sum(fields[11:13]) for pid in process_tree(pids) if (fields := stat_fields(pid))) / TICKS


def cores() -> tuple[int, int]:
    """Return the core for load generator and upstream, and the core for the proxy under test."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[-1]


class PeakMemory:
    """Sampler of the peak memory of a process tree, in MB. A shared page counts once."""

    def __init__(self, pid: int, every: float = 0.1) -> None:
        self._pid = pid
        self._every = every
        self._peak = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._poll)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def megabytes(self) -> float:
        return self._peak

    def _poll(self) -> None:
        while not self._ended.wait(self._every):
            self._peak = max(self._peak, memory_megabytes([self._pid]))


def memory_megabytes(pids: Sequence[int]) -> float:
    """Return the MB that these processes and their descendants use. A shared page counts once."""
    return sum(map(_proportional_kilobytes, process_tree(pids))) / 1024


def memory_of(pids: Sequence[int]) -> float:
    """Return the MB that these processes use without their descendants. A shared page counts once."""
    return sum(map(_proportional_kilobytes, pids)) / 1024


def _proportional_kilobytes(pid: int) -> int:
    lines = (_read(Path(f"/proc/{pid}/smaps_rollup")) or "").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


@contextmanager
def no_free_memory(directory: Path) -> Iterator[None]:
    """Fill free memory with clean pages, which the kernel can reuse at once.

    A virtual machine may return free memory to its host. The next process that needs it then waits
    for it: up to half of a restore's time, in some samples and not in others.
    """
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    with tempfile.TemporaryFile(dir=directory, buffering=0) as sparse_file:
        sparse_file.truncate(int(meminfo["MemFree"].split()[0]) * 1024)
        while sparse_file.read(1 << 20):
            pass
        yield


def describe() -> list[tuple[str, str]]:
    """Return names and values that describe the machine and the programs."""
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


def stat_fields(pid: int) -> list[int]:
    """Return the fields of /proc/PID/stat from the state on, with 0 for the state.

    Return an empty list if the process has ended.
    """
    fields = (_read(Path(f"/proc/{pid}/stat")) or ")").rpartition(")")[2].split()
    return [0, *map(int, fields[1:])] if fields else []


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return None


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine()
    )


def _distribution() -> str:
    return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
