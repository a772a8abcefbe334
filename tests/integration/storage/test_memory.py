"""A job needs little memory for any home. The whole process tree counts, shared pages once."""

import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.machine import PeakMemory
from codehub.domain.observation import JobState
from codehub.storage.child_processes import remove_tree
from codehub.storage.jobs.program import SPEC
from codehub.storage.jobs.report import read_ended
from codehub.storage.jobs.spec import JobSpec, dump_spec
from tests.integration.storage.conftest import FIRST, KEY, StorageFixture, storage_at
from tests.s3 import new_store_url, use
from tests.selection import EVERYTHING
from tests.services import run
from tests.trees import tree_hash
from tests.waiting import PATIENCE

LIMIT_MEGABYTES = 150
HOME_MEGABYTES = 150 if EVERYTHING else 100  # enough to show a job that keeps what passes
HALF = 1 << 19
FILES = 10_000
WORDS = b"what comes again and again is what a compressor is glad of; " * 8

JOB = """
import sys
from codehub.storage.jobs import program, report
from codehub.storage.tar import tar_process
{change}
sys.exit(program.main(sys.argv[1:]))
"""
AS_IT_IS, FOUR_THREADS = "", "tar_process.CORES = 4"
KEEPS_WHAT_PASSES = """
kept = []
def keep(self, done, files):
    kept.append(b"x" * (done - sum(map(len, kept))))
report.Reporter.progress = keep
"""


def fill(home: Path) -> None:
    """Make a home with half-compressible files, and very many names in one directory."""
    noise, words = random.Random(1), WORDS * (HALF // len(WORDS))
    for number in range(HOME_MEGABYTES):
        (home / f"{number}").write_bytes(noise.randbytes(HALF) + words)
    (home / "many").mkdir()
    for number in range(FILES):
        (home / "many" / f"a file with a name of some length {number}.js").write_bytes(b"%d\n" % number)


@pytest.fixture
def storage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StorageFixture]:
    storage = storage_at(tmp_path)
    if request.param == "s3":
        use(request.getfixturevalue("s3_server").environment(), monkeypatch)
        storage.location = replace(storage.location, archive_url=new_store_url())
    run(storage.initialise())
    run(storage.volumes.provision(KEY, FIRST, epoch=1, uid=None))
    fill(storage.home)
    yield storage
    remove_tree(tmp_path)  # pytest would keep hundreds of megabytes of each run


def peak_of(storage: StorageFixture, spec: JobSpec, change: str) -> float:
    """Return the peak memory of a real job, in MB."""
    directory = storage.root / "jobs" / spec.kind
    directory.mkdir(parents=True)
    (directory / SPEC).write_bytes(dump_spec(spec))
    command = [sys.executable, "-c", JOB.format(change=change), directory]
    with (directory / "log").open("wb") as log:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    with PeakMemory(child.pid, every=0.02 if EVERYTHING else 0.1) as peak:
        child.wait(PATIENCE)
    assert read_ended(directory).state is JobState.SUCCEEDED, (directory / "log").read_text()
    return peak.megabytes


def peaks(storage: StorageFixture, change: str) -> tuple[float, float]:
    """Return the peaks of an archive and of a restore."""
    archive = peak_of(storage, storage.archive_job(), change)
    peak_of(storage, storage.delete_job(), AS_IT_IS)
    return archive, peak_of(storage, storage.restore_job(), change)


# `make test` runs only the case that needs the most memory: four threads, and parts in upload.
@pytest.mark.parametrize(
    ("storage", "change"),
    [
        pytest.param("directory", AS_IT_IS, id="directory-own-threads", marks=pytest.mark.full),
        pytest.param("directory", FOUR_THREADS, id="directory-four-threads", marks=pytest.mark.full),
        pytest.param("s3", AS_IT_IS, id="s3-own-threads", marks=pytest.mark.full),
        pytest.param("s3", FOUR_THREADS, id="s3-four-threads"),
    ],
    indirect=["storage"],
)
def test_archive_and_restore_stay_small(storage: StorageFixture, change: str) -> None:
    before = tree_hash(storage.home)
    archive, restore = peaks(storage, change)
    assert tree_hash(storage.home) == before
    assert archive < LIMIT_MEGABYTES
    assert restore < LIMIT_MEGABYTES


@pytest.mark.full
@pytest.mark.parametrize("storage", ["directory"], indirect=True)
def test_the_memory_test_detects_a_job_that_keeps_what_it_reads(storage: StorageFixture) -> None:
    archive, restore = peaks(storage, KEEPS_WHAT_PASSES)
    assert archive > LIMIT_MEGABYTES
    assert restore > LIMIT_MEGABYTES
