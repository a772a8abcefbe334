"""An archive to an S3 server beside what it consists of: compressing alone, and uploading a ready file.

A server is another machine in reality. Here it has a core for itself in the first table; in the second it
shares all cores with what is measured.
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

from bench import table, tools, trees
from bench.archives import Cost, bound_memory, timed
from bench.machine import Quiet, cores
from codehub.domain.archive_keys import archive_key
from codehub.domain.observation import Generation
from codehub.storage.archive.async_archive_store import ArchiveStore
from codehub.storage.jobs.program import SPEC
from codehub.storage.jobs.spec import ArchiveJob, JobSpec, RestoreJob, StorageLocation, dump_spec
from codehub.storage.volumes.local_volumes import LocalVolumes
from codehub.ulids import new_id
from tests import s3

EPOCH: Final = 1
AT_LEAST: Final = 0.9
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


class Stage:
    """A home, its archive as a ready file, and the ways to measure with one server."""

    def __init__(self, directory: Path, home: Path, server: s3.S3Server, before: Sequence[str]) -> None:
        self._directory, self._home, self._server, self._before = directory, home, server, list(before)
        self._url = s3.new_store_url()
        self._location = StorageLocation(directory / "volumes", self._url, "bench")
        os.environ.update(server.environment())
        asyncio.run(ArchiveStore(self._url, "bench").initialise())

    def ways(self) -> dict[str, Callable[[], Cost]]:
        return {
            "compressor": partial(self._shell, FAITHFUL),
            "plain compressor": partial(self._shell, PLAIN),
            "upload": self._upload,
            "storage job": self._job,
        }

    def _shell(self, words: str) -> Cost:
        return timed([*self._before, "bash", "-o", "pipefail", "-c", words, "bench", str(self._home)])

    def _upload(self) -> Cost:
        ready = str(self._directory / "ready")
        script = [sys.executable, "-c", UPLOAD, self._url, self._server.endpoint, "ready", ready]
        return timed([*self._before, *script])

    def _job(self) -> Cost:
        archive_op_id = new_id()
        cost = self._archive(archive_op_id)
        asyncio.run(ArchiveStore(self._url, "bench").remove(archive_key(WORKSPACE, archive_op_id)))
        return cost

    def there_and_back(self) -> tuple[Cost, Cost]:
        """An archive, and its restore."""
        archived = self._archive("back")
        key = archive_key(WORKSPACE, "back")
        restore = RestoreJob(self._location, WORKSPACE, OTHER_KEY, "op2", key, None, EPOCH, reserve=0)
        return archived, self._run(restore)

    def _archive(self, archive_op_id: str) -> Cost:
        spec = ArchiveJob(self._location, WORKSPACE, KEY, GENERATION, archive_op_id, EPOCH, reserve=0)
        return self._run(spec)

    def _run(self, spec: JobSpec) -> Cost:
        place = self._directory / "jobs" / new_id()
        place.mkdir(parents=True)
        (place / SPEC).write_bytes(dump_spec(spec))
        return timed([*self._before, sys.executable, "-m", "codehub.storage.jobs.program", str(place)])


def measure(directory: Path, quiet: Quiet, rounds: int, scale: float) -> None:
    tools.need("tar", "zstd", "taskset")
    if not s3.PROGRAM.exists():
        raise tools.MissingToolError("there is no S3 server: `make install-tests` builds one")
    home = _make_home(directory / "mixed", trees.mixed, scale)
    ours, theirs = cores()
    with s3.S3Server.running(["taskset", "-c", str(theirs)]) as server:
        stage = Stage(directory / "mixed", home, server, ["taskset", "-c", str(ours)])
        _judge(_show(home, "the server has a core for itself", _rounds(stage, quiet, rounds)))
    with s3.S3Server.running() as server:
        stage = Stage(directory / "mixed", home, server, [])
        _show(home, "the server shares all cores", _rounds(stage, quiet, rounds))
        small = _make_home(directory / "small", trees.small_files, scale)
        stages = {"mixed home": stage, "small files": Stage(directory / "small", small, server, [])}
        _show_memory({name: stage.there_and_back() for name, stage in stages.items()})


def _make_home(directory: Path, fill: Callable[[Path, float], None], scale: float) -> Path:
    volumes = LocalVolumes(directory / "volumes", "bench")
    volumes.initialise()
    asyncio.run(volumes.provision(KEY, GENERATION, EPOCH, None))
    home = volumes.path(KEY)
    fill(home, scale)
    pack = PLAIN.replace("> /dev/null", '-o "$2"')
    timed(["bash", "-c", pack, "bench", str(home), str(directory / "ready")])
    return home


def _rounds(stage: Stage, quiet: Quiet, rounds: int) -> dict[str, list[Cost]]:
    """Interleaved; a first round, which also warms the page cache, does not count."""
    ways = stage.ways()
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    for work in ways.values():
        work()
    for _ in range(rounds):
        for name, work in ways.items():
            cost, noise = quiet.sample(work)
            costs[name].append(replace(cost, noise=noise))
    return costs


def _show(home: Path, title: str, costs: dict[str, list[Cost]]) -> dict[str, float]:
    """The medians that it shows."""
    medians = {name: statistics.median(cost.seconds for cost in own) for name, own in costs.items()}
    rows = []
    for name, own in costs.items():
        peers = [table.ratio(medians[peer], medians[name]) for peer in PEERS]
        peak, noise = max(cost.peak_mb for cost in own), max(cost.noise for cost in own)
        times = table.middle([cost.seconds for cost in own])
        rows.append([name, times, *peers, f"{peak:.0f}", f"{noise:.1f}"])
    size = sum(path.stat().st_size for path in home.rglob("*") if path.is_file()) / 1e6
    table.show(f"Archive to S3: {size:.0f} MB, {title}", HEADER, rows)
    return medians


def _judge(medians: dict[str, float]) -> None:
    """Where the server takes nothing from the job: the compressor has no server beside it, either."""
    speed = max(medians["compressor"], medians["upload"]) / medians["storage job"]
    words = f"archive to S3 at least {AT_LEAST} x the slower of compressor and upload"
    table.bound(words, f"{speed:.2f}", speed >= AT_LEAST)


def _show_memory(costs: dict[str, tuple[Cost, Cost]]) -> None:
    rows = [
        [name, f"{archived.peak_mb:.0f}", f"{restored.peak_mb:.0f}"]
        for name, (archived, restored) in costs.items()
    ]
    table.show("Memory with S3", ("home", "archive, peak MB", "restore, peak MB"), rows)
    for name, (archived, restored) in costs.items():
        bound_memory(f"archive and restore with S3, {name},", [archived, restored])
