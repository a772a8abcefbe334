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
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from ulid import ULID

from bench import table, tools, trees
from bench.machine import PeakMemory, Quiet, no_free_memory
from codehub.domain.observation import Generation
from codehub.storage.archive_store import ArchiveStore
from codehub.storage.archives import archive_key
from codehub.storage.job import SPEC
from codehub.storage.jobs import environment
from codehub.storage.jobspec import ArchiveJob, JobSpec, Place, RestoreJob, dump_spec
from codehub.storage.volumes import LocalVolumes
from tests.trees import tree_hash

EPOCH: Final = 1
NEEDED_BYTES: Final = 40 << 30
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

    def __init__(self, name: str, pack: str, unpack: str, directory: Path) -> None:
        self.name, self._pack, self._unpack = name, pack, unpack
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
        return timed(_shell(self._unpack, target, self._archive))


# The two pipelines that the storage job is held against, word for word; all that differs is where they run.
PLAIN = ('tar -c -C "$1" . | zstd -3 -T0 > "$2"', 'zstd -d < "$2" | tar -x -C "$1"')
FAITHFUL = (
    'tar --sparse --xattrs --acls --format=posix -c -C "$1" . | zstd -3 -T0 | tee >(sha256sum) > "$2"; sync',
    'zstd -d < "$2" | tar --xattrs --xattrs-include="*" --acls -x -C "$1"',
)
# The plain one, and that it is on the disk when it ends, as the job promises.
SYNCED = (f'{PLAIN[0]}; sync -f "$2"', f'{PLAIN[1]}; sync -f "$1"')
PEERS = {"plain": PLAIN, "synced": SYNCED, "faithful": FAITHFUL}


class Job:
    """CodeHub's storage job, told what the coordinator would tell it."""

    name = "storage job"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._installation = str(ULID()).lower()
        self._workspace = str(ULID()).lower()
        self._generation = Generation(str(ULID()).lower(), None)
        self._place = Place(directory / "volumes", f"file://{directory}/archives", self._installation)
        self._archive_key = "none yet"
        self._numbers = itertools.count()
        self.restored = directory
        """The home that was restored last."""

    async def make_home(self) -> Path:
        volumes = LocalVolumes(self._place.volumes_root, self._installation)
        volumes.initialise()
        await ArchiveStore(self._place.archive_url, self._installation).initialise()
        await volumes.provision(self._key("source"), self._generation, EPOCH, None)
        return volumes.path(self._key("source"))

    def archive(self, _home: Path) -> Cost:
        (self._directory / "archives" / self._archive_key).unlink(missing_ok=True)
        archive_op_id = str(ULID()).lower()
        self._archive_key = archive_key(self._workspace, archive_op_id)
        place, volume = self._place, self._key("source")
        cost = self._run(ArchiveJob(place, self._workspace, volume, self._generation, archive_op_id, EPOCH))
        return replace(cost, bytes=(self._directory / "archives" / self._archive_key).stat().st_size)

    def restore(self) -> Cost:
        """Each into the volume of another owner, so that each finds a fresh directory."""
        volume, op_id = self._key(f"owner-{next(self._numbers)}"), str(ULID()).lower()
        self.restored = LocalVolumes(self._place.volumes_root, self._installation).path(volume)
        key = self._archive_key
        return self._run(RestoreJob(self._place, self._workspace, volume, op_id, key, None, EPOCH, reserve=0))

    def _key(self, owner: str) -> str:
        return f"users/{owner}/workspaces/{self._workspace}/home"

    def _run(self, spec: JobSpec) -> Cost:
        directory = self._directory / "jobs" / str(ULID()).lower()
        directory.mkdir(parents=True)
        (directory / SPEC).write_bytes(dump_spec(spec))
        return timed([sys.executable, "-m", "codehub.storage.job", str(directory)], environment())


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
    ways: list[Way] = [*(Pipeline(peer, *commands, place) for peer, commands in PEERS.items()), job]
    entries = list(home.rglob("*"))
    size = sum(path.stat().st_size for path in entries if path.is_file())
    words = f"{name}, {len(entries):,} entries, {size / 1e6:.0f} MB"
    for way in ways:
        way.archive(home)  # warms the page cache, and does not count
    with no_free_memory(place):
        _show(f"Archive: {words}", _rounds(ways, lambda way: way.archive(home), quiet, rounds))
    # None is repeated for its noise: each leaves a home behind, since removing them would slow down the next.
    quiet.wait()
    with no_free_memory(place):
        _show(f"Restore: {words}", _rounds(ways, lambda way: way.restore(), Quiet(patience=0), rounds))
    assert tree_hash(job.restored) == tree_hash(home), "what was restored is not what was archived"


def _rounds(ways: list[Way], work: Callable[[Way], Cost], quiet: Quiet, rounds: int) -> dict[str, list[Cost]]:
    """Interleaved."""
    costs: dict[str, list[Cost]] = {way.name: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            cost, noise = quiet.sample(partial(work, way))
            costs[way.name].append(replace(cost, noise=noise))
    return costs


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


def _show(title: str, costs: dict[str, list[Cost]]) -> None:
    medians = {name: statistics.median(cost.seconds for cost in own) for name, own in costs.items()}
    rows = []
    for name, own in costs.items():
        speeds = [table.ratio(medians[peer], medians[name]) for peer in PEERS]
        cpu = statistics.median(cost.cpu_seconds for cost in own)
        packed = f"{own[0].bytes / 1e6:.1f}" if own[0].bytes else "–"
        peak, noise = max(cost.peak_mb for cost in own), max(cost.noise for cost in own)
        times = table.middle([cost.seconds for cost in own])
        rows.append([name, times, *speeds, f"{cpu:.2f}", f"{peak:.0f}", packed, f"{noise:.1f}"])
    table.show(title, HEADER, rows)
