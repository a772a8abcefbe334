"""Archive to an S3 server, beside compression alone and the upload of a finished file.

In production the server is another machine. Here it has its own core in the first table. In the
second table it shares all cores with the measured processes.
"""

import asyncio
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from bench import sample_homes, table, tools
from bench.archives import Cost, print_memory_bound, timed
from bench.machine import cores
from bench.sampler import Sampler
from codehub.domain.archive_keys import archive_key
from codehub.domain.observation import Generation
from codehub.storage.archive.async_archive_store import ArchiveStore
from codehub.storage.jobs.program import SPEC
from codehub.storage.jobs.spec import ArchiveJob, JobSpec, RestoreJob, StorageLocation, dump_spec
from codehub.storage.volumes.local_volumes import LocalVolumes
from codehub.ulids import new_id
from tests import s3

EPOCH: Final = 1
MINIMUM_SPEED: Final = 0.9
PLAIN = 'tar -c -C "$1" . | zstd -3 -T0 -q > /dev/null'
FAITHFUL = 'tar --sparse --xattrs --acls --format=posix -c -C "$1" . | zstd -3 -T0 -q > /dev/null'
UPLOAD = """
import sys
from pathlib import Path
import obstore
from obstore.store import S3Store
store = S3Store.from_url(sys.argv[1], config={"endpoint": sys.argv[2]}, client_options={"allow_http": True})
obstore.put(store, sys.argv[3], Path(sys.argv[4]), use_multipart=True, chunk_size=8 << 20)
"""
PEERS = ("compressor", "plain compressor", "upload")
HEADER = ("speed", "seconds (min–max)", *(f"× {peer}" for peer in PEERS), "peak MB", "noise %")
WORKSPACE: Final = "w1"
KEY: Final = f"users/u1/workspaces/{WORKSPACE}/home"
OTHER_KEY: Final = f"users/u2/workspaces/{WORKSPACE}/home"
GENERATION: Final = Generation("op1", None)
ARCHIVE: Final = "archive.tar.zst"
"""The finished archive that the upload reads."""


class S3Benchmark:
    """Measurements of one home, its finished archive and one server."""

    def __init__(self, directory: Path, home: Path, server: s3.S3Server, prefix: Sequence[str]) -> None:
        self._directory, self._home, self._server = directory, home, server
        self._prefix = list(prefix)
        """Command that runs each measured command, such as taskset."""
        self._url = s3.new_store_url()
        self._location = StorageLocation(directory / "volumes", self._url, "bench")
        os.environ.update(server.environment())
        asyncio.run(ArchiveStore(self._url, "bench").initialise())

    def methods(self) -> dict[str, Callable[[], Cost]]:
        return {
            "compressor": partial(self._shell, FAITHFUL),
            "plain compressor": partial(self._shell, PLAIN),
            "upload": self._upload,
            "storage job": self._job,
        }

    def _shell(self, command: str) -> Cost:
        return timed([*self._prefix, "bash", "-o", "pipefail", "-c", command, "bench", str(self._home)])

    def _upload(self) -> Cost:
        archive = str(self._directory / ARCHIVE)
        script = [sys.executable, "-c", UPLOAD, self._url, self._server.endpoint, ARCHIVE, archive]
        return timed([*self._prefix, *script])

    def _job(self) -> Cost:
        archive_op_id = new_id()
        cost = self._archive(archive_op_id)
        asyncio.run(ArchiveStore(self._url, "bench").remove(archive_key(WORKSPACE, archive_op_id)))
        return cost

    def archive_and_restore(self) -> tuple[Cost, Cost]:
        archived = self._archive("restored")
        key = archive_key(WORKSPACE, "restored")
        restore = RestoreJob(self._location, WORKSPACE, OTHER_KEY, "op2", key, None, EPOCH, reserve=0)
        return archived, self._run(restore)

    def _archive(self, archive_op_id: str) -> Cost:
        spec = ArchiveJob(self._location, WORKSPACE, KEY, GENERATION, archive_op_id, EPOCH, reserve=0)
        return self._run(spec)

    def _run(self, spec: JobSpec) -> Cost:
        directory = self._directory / "jobs" / new_id()
        directory.mkdir(parents=True)
        (directory / SPEC).write_bytes(dump_spec(spec))
        return timed([*self._prefix, sys.executable, "-m", "codehub.storage.jobs.program", str(directory)])


def measure(directory: Path, sampler: Sampler, rounds: int, scale: float) -> None:
    tools.require("tar", "zstd", "taskset")
    if not s3.PROGRAM.exists():
        raise tools.MissingToolError("it needs an S3 server, which `make install-tests` builds")
    home = _make_home(directory / "mixed", sample_homes.fill_mixed, scale)
    own_core, server_core = cores()
    with s3.S3Server.running(["taskset", "-c", str(server_core)]) as server:
        benchmark = S3Benchmark(directory / "mixed", home, server, ["taskset", "-c", str(own_core)])
        _check_speed(_show(home, "the server has its own core", _rounds(benchmark, sampler, rounds)))
    with s3.S3Server.running() as server:
        benchmark = S3Benchmark(directory / "mixed", home, server, [])
        _show(home, "the server shares all cores", _rounds(benchmark, sampler, rounds))
        small = _make_home(directory / "small", sample_homes.fill_small_files, scale)
        homes = {"mixed home": benchmark, "small files": S3Benchmark(directory / "small", small, server, [])}
        _show_memory({name: each.archive_and_restore() for name, each in homes.items()})


def _make_home(directory: Path, fill: Callable[[Path, float], None], scale: float) -> Path:
    volumes = LocalVolumes(directory / "volumes", "bench")
    volumes.initialise()
    asyncio.run(volumes.provision(KEY, GENERATION, EPOCH, None))
    home = volumes.path(KEY)
    fill(home, scale)
    command = PLAIN.replace("> /dev/null", '-o "$2"')
    timed(["bash", "-c", command, "bench", str(home), str(directory / ARCHIVE)])
    return home


def _rounds(benchmark: S3Benchmark, sampler: Sampler, rounds: int) -> dict[str, list[Cost]]:
    """Measure the methods in turns. A first round warms the page cache, and does not count."""
    methods = benchmark.methods()
    costs: dict[str, list[Cost]] = {name: [] for name in methods}
    for method in methods.values():
        method()
    for _ in range(rounds):
        for name, method in methods.items():
            cost, noise = sampler.sample(method)
            costs[name].append(replace(cost, noise=noise))
    return costs


def _show(home: Path, title: str, costs: dict[str, list[Cost]]) -> dict[str, float]:
    """Print the table, and return the medians."""
    medians = {name: statistics.median(cost.seconds for cost in samples) for name, samples in costs.items()}
    rows = []
    for name, samples in costs.items():
        peers = [table.ratio(medians[peer], medians[name]) for peer in PEERS]
        peak, noise = max(cost.peak_mb for cost in samples), max(cost.noise for cost in samples)
        times = table.median_and_range([cost.seconds for cost in samples])
        rows.append([name, times, *peers, f"{peak:.0f}", f"{noise:.1f}"])
    size = sum(path.stat().st_size for path in home.rglob("*") if path.is_file()) / 1e6
    table.print_table(f"Archive to S3: {size:.0f} MB, {title}", HEADER, rows)
    return medians


def _check_speed(medians: dict[str, float]) -> None:
    """Print the bound, for a server on its own core: compression alone runs without a server."""
    speed = max(medians["compressor"], medians["upload"]) / medians["storage job"]
    bound = f"archive to S3 at least {MINIMUM_SPEED} x the slower of compressor and upload"
    table.print_bound(bound, f"{speed:.2f}", speed >= MINIMUM_SPEED)


def _show_memory(costs: dict[str, tuple[Cost, Cost]]) -> None:
    rows = [
        [name, f"{archived.peak_mb:.0f}", f"{restored.peak_mb:.0f}"]
        for name, (archived, restored) in costs.items()
    ]
    table.print_table("Memory with S3", ("home", "archive, peak MB", "restore, peak MB"), rows)
    for name, (archived, restored) in costs.items():
        print_memory_bound(f"archive and restore with S3, {name},", [archived, restored])
