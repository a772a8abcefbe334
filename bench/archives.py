"""Storage job beside `tar | zstd`: archive and restore of the same homes, in interleaved rounds."""

import asyncio
import itertools
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from bench import sample_homes, table, tools
from bench.machine import PeakMemory, no_free_memory
from bench.sampler import Sampler
from codehub.domain.archive_keys import archive_key
from codehub.domain.observation import Generation
from codehub.storage.archive.async_archive_store import ArchiveStore
from codehub.storage.jobs.local_jobs import job_environment
from codehub.storage.jobs.program import SPEC
from codehub.storage.jobs.spec import ArchiveJob, JobSpec, RestoreJob, StorageLocation, dump_spec
from codehub.storage.volumes.local_volumes import LocalVolumes
from codehub.ulids import new_id
from tests.trees import tree_hash

EPOCH: Final = 1
NEEDED_BYTES: Final = 40 << 30
ARCHIVE_MINIMUM = {"faithful": 1.1, "plain": 0.9}
RESTORE_MINIMUM = 1.0
MEMORY_LIMIT_MB: Final = 150
HEADER = (
    "method",
    "seconds (min–max)",
    "speed × plain",
    "× synced",
    "× faithful",
    "CPU s",
    "peak MB",
    "archive MB",
    "noise %",
)
PAIRS_HEADER = (
    "method",
    "seconds (min–max)",
    "speed × plain",
    "each pair",
    "CPU s",
    "peak MB",
    "noise %",
)


@dataclass(frozen=True)
class Cost:
    seconds: float
    cpu_seconds: float
    peak_mb: float
    bytes: int = 0
    noise: float = 0.0


class Method(Protocol):
    """Method to archive a home, replacing the last archive, and to restore it elsewhere."""

    name: str

    def archive(self, home: Path) -> Cost: ...

    def restore(self) -> Cost: ...


class Pipeline:
    """Shell pipeline of `tar | zstd`, and the reverse. $1 is the home, $2 the archive."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name, self._archive_command = name, PEERS[name]
        self._directory = directory / name
        self._directory.mkdir()
        self._archive = self._directory / "home.tar.zst"
        self._numbers = itertools.count()

    def archive(self, home: Path) -> Cost:
        self._archive.unlink(missing_ok=True)
        cost = timed(_shell(self._archive_command, home, self._archive))
        return replace(cost, bytes=self._archive.stat().st_size)

    def restore(self) -> Cost:
        target = self._directory / f"home-{next(self._numbers)}"
        target.mkdir()
        return timed(_shell(UNPACK, target, self._archive))


# Pipelines that the storage job is compared with.
PLAIN = 'tar -c -C "$1" . | zstd -3 -T0 > "$2"'
PEERS = {
    "plain": PLAIN,
    # Like plain, and the archive is on the disk when the command ends, as the job promises.
    "synced": f'{PLAIN}; sync -f "$2"',
    "faithful": (
        'tar --sparse --xattrs --acls --format=posix -c -C "$1" . | zstd -3 -T0 '
        '| tee >(sha256sum) > "$2"; sync'
    ),
}
UNPACK = 'zstd -d < "$2" | tar -x -C "$1"'


class StorageJob:
    """CodeHub's storage job, with the spec that the coordinator would write."""

    name = "storage job"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._installation = new_id()
        self._workspace = new_id()
        self._generation = Generation(new_id(), None)
        self._location = StorageLocation(
            directory / "volumes", f"file://{directory}/archives", self._installation
        )
        self._archive_key = "none"
        self._numbers = itertools.count()
        self.restored = directory
        """The home that was last restored."""

    async def make_home(self) -> Path:
        volumes = LocalVolumes(self._location.volumes_root, self._installation)
        volumes.initialise()
        await ArchiveStore(self._location.archive_url, self._installation).initialise()
        await volumes.provision(self._key("source"), self._generation, EPOCH, None)
        return volumes.path(self._key("source"))

    def archive(self, _home: Path) -> Cost:
        (self._directory / "archives" / self._archive_key).unlink(missing_ok=True)
        archive_op_id = new_id()
        self._archive_key = archive_key(self._workspace, archive_op_id)
        volume, generation = self._key("source"), self._generation
        cost = self._run(
            ArchiveJob(self._location, self._workspace, volume, generation, archive_op_id, EPOCH, reserve=0)
        )
        return replace(cost, bytes=(self._directory / "archives" / self._archive_key).stat().st_size)

    def restore(self) -> Cost:
        """Restore into the volume of a new owner, so that each restore has a fresh directory."""
        volume, op_id = self._key(f"owner-{next(self._numbers)}"), new_id()
        self.restored = LocalVolumes(self._location.volumes_root, self._installation).path(volume)
        key = self._archive_key
        return self._run(
            RestoreJob(self._location, self._workspace, volume, op_id, key, None, EPOCH, reserve=0)
        )

    def _key(self, owner: str) -> str:
        return f"users/{owner}/workspaces/{self._workspace}/home"

    def _run(self, spec: JobSpec) -> Cost:
        directory = self._directory / "jobs" / new_id()
        directory.mkdir(parents=True)
        (directory / SPEC).write_bytes(dump_spec(spec))
        command = [sys.executable, "-m", "codehub.storage.jobs.program", str(directory)]
        return timed(command, job_environment())


def measure(directory: Path, sampler: Sampler, rounds: int, scale: float) -> None:
    tools.require("tar", "zstd")
    if shutil.disk_usage(directory).free < NEEDED_BYTES * scale:
        raise tools.MissingToolError(
            f"{directory} needs {NEEDED_BYTES * scale / (1 << 30):.0f} GB of free space"
        )
    homes = (
        ("mixed home", "mixed", sample_homes.fill_mixed),
        ("small files", "small_files", sample_homes.fill_small_files),
    )
    for name, subdirectory, fill in homes:
        home_directory = directory / subdirectory
        home_directory.mkdir()
        job = StorageJob(home_directory)
        home = asyncio.run(job.make_home())
        fill(home, scale)
        _measure_home(name, home, job, home_directory, sampler, rounds)


def _measure_home(
    name: str, home: Path, job: StorageJob, directory: Path, sampler: Sampler, rounds: int
) -> None:
    plain, *others = (Pipeline(peer, directory) for peer in PEERS)
    methods: list[Method] = [plain, *others, job]
    entries = list(home.rglob("*"))
    size = sum(path.stat().st_size for path in entries if path.is_file())
    description = f"{name}, {len(entries):,} entries, {size / 1e6:.0f} MB"
    for method in methods:
        method.archive(home)  # this warms the page cache, and does not count
    with no_free_memory(directory):
        _show_archives(f"Archive: {description}", _archive_rounds(methods, home, sampler, rounds))
    sampler.wait()
    with no_free_memory(directory):
        _show_restores(f"Restore: {description}", *_restore_pairs(plain, job, 2 * rounds))
    assert tree_hash(job.restored) == tree_hash(home), "the restored home differs from the archived one"


def _archive_rounds(
    methods: Sequence[Method], home: Path, sampler: Sampler, rounds: int
) -> dict[str, list[Cost]]:
    """Measure the methods in turns."""
    costs: dict[str, list[Cost]] = {method.name: [] for method in methods}
    for _ in range(rounds):
        for method in methods:
            costs[method.name].append(_sample(partial(method.archive, home), sampler))
    return costs


def _restore_pairs(plain: Method, job: Method, pairs: int) -> tuple[list[Cost], list[Cost]]:
    """Measure in pairs, in alternating order, because the machine's speed drifts.

    A noisy sample is not repeated. Each restore leaves a home behind, because removing it would slow
    down the next restore.
    """
    costs: dict[str, list[Cost]] = {plain.name: [], job.name: []}
    for number in range(pairs):
        for method in (job, plain) if number % 2 else (plain, job):
            costs[method.name].append(_sample(method.restore, Sampler(budget=0)))
    return costs[plain.name], costs[job.name]


def _sample(work: Callable[[], Cost], sampler: Sampler) -> Cost:
    cost, noise = sampler.sample(work)
    return replace(cost, noise=noise)


def timed(command: list[str], env: dict[str, str] | None = None) -> Cost:
    """Run a command to its end. Pending writes of earlier commands are flushed first."""
    os.sync()
    with tempfile.TemporaryFile() as errors:
        began = time.perf_counter()
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=env,
            start_new_session=True,
        )
        try:
            with PeakMemory(child.pid) as peak:
                _, status, used = os.wait4(child.pid, 0)
                seconds = time.perf_counter() - began
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            raise
        child.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        assert child.returncode == 0, f"{command} failed: {errors.read().decode(errors='replace')}"
    return Cost(seconds, used.ru_utime + used.ru_stime, peak.megabytes)


def _shell(command: str, *arguments: Path) -> list[str]:
    return ["bash", "-o", "pipefail", "-c", command, "bench", *map(str, arguments)]


def _show_archives(title: str, costs: dict[str, list[Cost]]) -> None:
    medians = {name: statistics.median(cost.seconds for cost in samples) for name, samples in costs.items()}
    rows = []
    for name, samples in costs.items():
        speeds = [table.ratio(medians[peer], medians[name]) for peer in PEERS]
        cpu, peak, noise = _resources(samples)
        times = table.median_and_range([cost.seconds for cost in samples])
        rows.append([name, times, *speeds, cpu, peak, f"{samples[0].bytes / 1e6:.1f}", noise])
    table.print_table(title, HEADER, rows)
    for peer, minimum in ARCHIVE_MINIMUM.items():
        speed = medians[peer] / medians[StorageJob.name]
        table.print_bound(f"archive at least {minimum} x {peer}", f"{speed:.2f}", speed >= minimum)
    print_memory_bound("archive", costs[StorageJob.name])


def _show_restores(title: str, plain: list[Cost], job: list[Cost]) -> None:
    speeds = [one.seconds / other.seconds for one, other in zip(plain, job, strict=True)]
    speed = statistics.median(speeds)
    each = ", ".join(f"{speed:.2f}" for speed in speeds)
    rows = []
    for name, samples, ratio, pairs in (
        ("plain", plain, "1.00", ""),
        (StorageJob.name, job, f"{speed:.2f}", each),
    ):
        rows.append(
            [
                name,
                table.median_and_range([cost.seconds for cost in samples]),
                ratio,
                pairs,
                *_resources(samples),
            ]
        )
    table.print_table(title, PAIRS_HEADER, rows)
    table.print_bound(f"restore at least {RESTORE_MINIMUM} x plain", f"{speed:.2f}", speed >= RESTORE_MINIMUM)
    print_memory_bound("restore", job)


def _resources(samples: list[Cost]) -> tuple[str, str, str]:
    """Return CPU time, peak memory and noise."""
    cpu = statistics.median(cost.cpu_seconds for cost in samples)
    return f"{cpu:.2f}", f"{_peak(samples):.0f}", f"{max(cost.noise for cost in samples):.1f}"


def print_memory_bound(what: str, samples: list[Cost]) -> None:
    peak = _peak(samples)
    table.print_bound(f"{what} below {MEMORY_LIMIT_MB} MB of memory", f"{peak:.0f}", peak < MEMORY_LIMIT_MB)


def _peak(samples: list[Cost]) -> float:
    return max(cost.peak_mb for cost in samples)
