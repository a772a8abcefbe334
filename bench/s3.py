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

from ulid import ULID

from bench import table, tools, trees
from bench.archives import Cost, timed
from bench.machine import Quiet, cores
from codehub.domain.observation import Generation
from codehub.storage.archive_store import ArchiveStore
from codehub.storage.archives import archive_key
from codehub.storage.job import SPEC
from codehub.storage.jobspec import ArchiveJob, Place, dump_spec
from codehub.storage.volumes import LocalVolumes
from tests import s3

EPOCH: Final = 1
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
GENERATION: Final = Generation("op1", None)


class Stage:
    """A home, its archive as a ready file, and the ways to measure with one server."""

    def __init__(self, directory: Path, home: Path, server: s3.S3Server, before: Sequence[str]) -> None:
        self._directory, self._home, self._server, self._before = directory, home, server, list(before)
        self._url = s3.new_store_url()
        self._place = Place(directory / "volumes", self._url, "bench")
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
        place = self._directory / "jobs" / str(ULID()).lower()
        place.mkdir(parents=True)
        archive_op_id = str(ULID()).lower()
        spec = ArchiveJob(self._place, WORKSPACE, KEY, GENERATION, archive_op_id, EPOCH)
        (place / SPEC).write_bytes(dump_spec(spec))
        cost = timed([*self._before, sys.executable, "-m", "codehub.storage.job", str(place)])
        asyncio.run(ArchiveStore(self._url, "bench").remove(archive_key(WORKSPACE, archive_op_id)))
        return cost


def measure(directory: Path, quiet: Quiet, rounds: int, scale: float) -> None:
    tools.need("tar", "zstd", "taskset")
    if not s3.PROGRAM.exists():
        raise tools.MissingToolError("there is no S3 server: `make install-tests` builds one")
    home = _make_home(directory, scale)
    words = f"{sum(path.stat().st_size for path in home.rglob('*') if path.is_file()) / 1e6:.0f} MB"
    ours, theirs = cores()
    for title, before, server_before in (
        ("the server has a core for itself", ["taskset", "-c", str(ours)], ["taskset", "-c", str(theirs)]),
        ("the server shares all cores", [], []),
    ):
        with s3.S3Server.running(server_before) as server:
            stage = Stage(directory, home, server, before)
            _show(f"Archive to S3: {words}, {title}", _rounds(stage, quiet, rounds))


def _make_home(directory: Path, scale: float) -> Path:
    volumes = LocalVolumes(directory / "volumes", "bench")
    volumes.initialise()
    asyncio.run(volumes.provision(KEY, GENERATION, EPOCH, None))
    home = volumes.path(KEY)
    trees.mixed(home, scale)
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


def _show(title: str, costs: dict[str, list[Cost]]) -> None:
    medians = {name: statistics.median(cost.seconds for cost in own) for name, own in costs.items()}
    rows = []
    for name, own in costs.items():
        peers = [table.ratio(medians[peer], medians[name]) for peer in PEERS]
        peak, noise = max(cost.peak_mb for cost in own), max(cost.noise for cost in own)
        times = table.middle([cost.seconds for cost in own])
        rows.append([name, times, *peers, f"{peak:.0f}", f"{noise:.1f}"])
    table.show(title, HEADER, rows)
