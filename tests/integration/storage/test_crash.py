"""Jobs killed in the middle of a stream: nothing partial counts, and the next run completes it.

Killed before and after each of their steps they are in the crash matrix (`tests/chaos`).
"""

import asyncio
import os
from pathlib import Path

from codehub.domain.observation import JobState
from codehub.storage.jobs.spec import JobSpec
from tests.integration.storage.conftest import KEY, StorageFixture
from tests.paused_jobs import pausing_tar
from tests.selection import sample
from tests.trees import tree_hash
from tests.waiting import until

MEGABYTES = 48
RECORDS = 4 * MEGABYTES
"""Records of tar, at least; each of the two that restore gets half of them."""


async def kill_after(storage: StorageFixture, records: int, spec: JobSpec) -> None:
    """Kill a job after its tar has read or written this many records."""
    job_id = f"killed-after-{records}"
    with pausing_tar(create=records, extract=records) as is_asleep:
        await storage.jobs.start(job_id, spec)
        await until(is_asleep, "tar to fall asleep")
        await storage.jobs.cancel(job_id)
    fact = await storage.jobs.status(job_id)
    assert fact is not None and fact.state is JobState.GONE


def add_bulk(home: Path) -> None:
    (home / "bulk").mkdir()
    for number in range(MEGABYTES):
        (home / "bulk" / f"{number}").write_bytes(os.urandom(1 << 20))


async def test_an_archive_that_is_killed_in_the_middle_of_its_stream(storage: StorageFixture) -> None:
    await storage.make_home()
    add_bulk(storage.home)
    before = await asyncio.to_thread(tree_hash, storage.home)
    for records in sample(range(1, RECORDS, RECORDS // 12), 4, "killed archives"):
        await kill_after(storage, records, storage.archive_job())
        assert await asyncio.to_thread(tree_hash, storage.home) == before
        assert await storage.store.find("w1", "a1") is None
    await storage.done("archive", storage.archive_job())
    assert sorted(path.name for path in (storage.archives_root / "w1/a1").iterdir()) == [
        ".meta",
        "home.tar.zst",
    ]
    await storage.done("delete", storage.delete_job())
    await storage.done("restore", storage.restore_job())
    assert tree_hash(storage.home) == before


async def test_a_restore_that_is_killed_in_the_middle_of_its_stream(storage: StorageFixture) -> None:
    await storage.make_home()
    add_bulk(storage.home)
    before = await asyncio.to_thread(tree_hash, storage.home)
    await storage.done("archive", storage.archive_job())
    await storage.done("delete", storage.delete_job())
    for records in sample(range(1, RECORDS // 2, RECORDS // 24), 4, "killed restores"):
        await kill_after(storage, records, storage.restore_job())
        assert await storage.volumes.status(KEY) is None
    await storage.done("restore", storage.restore_job())
    assert tree_hash(storage.home) == before
    assert storage.beside_home() == {".lock", ".fence", ".marker", "home"}
