"""The storage job beside `tar | zstd`: archive and restore of the same homes, in interleaved rounds."""

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

from bench import table, tools, trees
from bench.machine import PeakMemory, Quiet, no_free_memory
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
AT_LEAST = {"faithful": 1.1, "plain": 0.9}
RESTORE_AT_LEAST = 1.0
BELOW_MEGABYTES: Final = 150
HEADER = (
    "way",
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
    "way",
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


class Way(Protocol):
    """One way to archive a home, which replaces its last archive, and to restore it to a new directory."""

    name: str

    def archive(self, home: Path) -> Cost: ...

    def restore(self) -> Cost: ...


class Pipeline:
    """`tar | zstd` and back, as a shell writes it. $1 is the home, $2 the archive."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name, self._pack = name, PEERS[name]
        self._directory = directory / name
        self._directory.mkdir()
        self._archive = self._directory / "home.tar.zst"
        self._numbers = itertools.count()

    def archive(self, home: Path) -> Cost:
        self._archive.unlink(missing_ok=True)
        cost = timed(_shell(self._pack, home, self._archive))
        return replace(cost, bytes=self._archive.stat().st_size)

    def restore(self) -> Cost:
        target = self._directory / f"home-{next(self._numbers)}"
        target.mkdir()
        return timed(_shell(UNPACK, target, self._archive))


# The pipelines that the storage job is held against, word for word; all that differs is where they run.
PLAIN = 'tar -c -C "$1" . | zstd -3 -T0 > "$2"'
PEERS = {
    "plain": PLAIN,
    # The plain one, and that it is on the disk when it ends, as the job promises.
    "synced": f'{PLAIN}; sync -f "$2"',
    "faithful": (
        'tar --sparse --xattrs --acls --format=posix -c -C "$1" . | zstd -3 -T0 '
        '| tee >(sha256sum) > "$2"; sync'
    ),
}
UNPACK = 'zstd -d < "$2" | tar -x -C "$1"'


class Job:
    """CodeHub's storage job, told what the coordinator would tell it."""

    name = "storage job"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._installation = new_id()
        self._workspace = new_id()
        self._generation = Generation(new_id(), None)
        self._location = StorageLocation(
            directory / "volumes", f"file://{directory}/archives", self._installation
        )
        self._archive_key = "none yet"
        self._numbers = itertools.count()
        self.restored = directory
        """The home that was restored last."""

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
        """Each into the volume of another owner, so that each finds a fresh directory."""
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


def measure(directory: Path, quiet: Quiet, rounds: int, scale: float) -> None:
    tools.need("tar", "zstd")
    if shutil.disk_usage(directory).free < NEEDED_BYTES * scale:
        raise tools.MissingToolError(
            f"{directory} needs {NEEDED_BYTES * scale / (1 << 30):.0f} GB of free space"
        )
    for name, fill in (("mixed home", trees.mixed), ("small files", trees.small_files)):
        place = directory / fill.__name__
        place.mkdir()
        job = Job(place)
        home = asyncio.run(job.make_home())
        fill(home, scale)
        _measure_home(name, home, job, place, quiet, rounds)


def _measure_home(name: str, home: Path, job: Job, place: Path, quiet: Quiet, rounds: int) -> None:
    plain, *others = (Pipeline(peer, place) for peer in PEERS)
    ways: list[Way] = [plain, *others, job]
    entries = list(home.rglob("*"))
    size = sum(path.stat().st_size for path in entries if path.is_file())
    words = f"{name}, {len(entries):,} entries, {size / 1e6:.0f} MB"
    for way in ways:
        way.archive(home)  # warms the page cache, and does not count
    with no_free_memory(place):
        _show_archives(f"Archive: {words}", _rounds(ways, home, quiet, rounds))
    quiet.wait()
    with no_free_memory(place):
        _show_restores(f"Restore: {words}", *_pairs(plain, job, 2 * rounds))
    assert tree_hash(job.restored) == tree_hash(home), "what was restored is not what was archived"


def _rounds(ways: Sequence[Way], home: Path, quiet: Quiet, rounds: int) -> dict[str, list[Cost]]:
    """Interleaved."""
    costs: dict[str, list[Cost]] = {way.name: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            costs[way.name].append(_sample(partial(way.archive, home), quiet))
    return costs


def _pairs(plain: Way, job: Way, pairs: int) -> tuple[list[Cost], list[Cost]]:
    """Directly beside each other, in alternating order: the machine's speed drifts.

    None is repeated for its noise: each leaves a home behind, since removing them would slow down the next.
    """
    costs: dict[str, list[Cost]] = {plain.name: [], job.name: []}
    for number in range(pairs):
        for way in (job, plain) if number % 2 else (plain, job):
            costs[way.name].append(_sample(way.restore, Quiet(patience=0)))
    return costs[plain.name], costs[job.name]


def _sample(work: Callable[[], Cost], quiet: Quiet) -> Cost:
    cost, noise = quiet.sample(work)
    return replace(cost, noise=noise)


def timed(command: list[str], env: dict[str, str] | None = None) -> Cost:
    """Runs a command to its end. What earlier ones have left to write is written before."""
    os.sync()
    with tempfile.TemporaryFile() as said:
        began = time.perf_counter()
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
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
        said.seek(0)
        assert child.returncode == 0, f"{command} failed: {said.read().decode(errors='replace')}"
    return Cost(seconds, used.ru_utime + used.ru_stime, peak.megabytes)


def _shell(words: str, *arguments: Path) -> list[str]:
    return ["bash", "-o", "pipefail", "-c", words, "bench", *map(str, arguments)]


def _show_archives(title: str, costs: dict[str, list[Cost]]) -> None:
    medians = {name: statistics.median(cost.seconds for cost in own) for name, own in costs.items()}
    rows = []
    for name, own in costs.items():
        speeds = [table.ratio(medians[peer], medians[name]) for peer in PEERS]
        cpu, peak, noise = _figures(own)
        times = table.middle([cost.seconds for cost in own])
        rows.append([name, times, *speeds, cpu, peak, f"{own[0].bytes / 1e6:.1f}", noise])
    table.show(title, HEADER, rows)
    for peer, least in AT_LEAST.items():
        speed = medians[peer] / medians[Job.name]
        table.bound(f"archive at least {least} x {peer}", f"{speed:.2f}", speed >= least)
    bound_memory("archive", costs[Job.name])


def _show_restores(title: str, plain: list[Cost], job: list[Cost]) -> None:
    speeds = [one.seconds / other.seconds for one, other in zip(plain, job, strict=True)]
    speed = statistics.median(speeds)
    each = ", ".join(f"{speed:.2f}" for speed in speeds)
    rows = []
    for name, own, ratio, pairs in (("plain", plain, "1.00", ""), (Job.name, job, f"{speed:.2f}", each)):
        rows.append([name, table.middle([cost.seconds for cost in own]), ratio, pairs, *_figures(own)])
    table.show(title, PAIRS_HEADER, rows)
    table.bound(f"restore at least {RESTORE_AT_LEAST} x plain", f"{speed:.2f}", speed >= RESTORE_AT_LEAST)
    bound_memory("restore", job)


def _figures(own: list[Cost]) -> tuple[str, str, str]:
    """CPU, peak memory and noise."""
    cpu = statistics.median(cost.cpu_seconds for cost in own)
    return f"{cpu:.2f}", f"{_peak(own):.0f}", f"{max(cost.noise for cost in own):.1f}"


def bound_memory(what: str, own: list[Cost]) -> None:
    peak = _peak(own)
    table.bound(f"{what} below {BELOW_MEGABYTES} MB of memory", f"{peak:.0f}", peak < BELOW_MEGABYTES)


def _peak(own: list[Cost]) -> float:
    return max(cost.peak_mb for cost in own)
