"""Jobs killed in the middle of a stream: nothing half done counts as done, and the next run completes it.

Killed before and after each of their steps they are in the crash matrix (`tests/chaos`).
"""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from codehub.domain.observation import Generation, JobState, VolumeFact
from codehub.storage.jobspec import JobSpec
from tests.integration.storage.conftest import KEY, Site
from tests.trees import tree_hash

RESTORED = Generation("op2", "w1/a1/home.tar.zst")
MOMENTS = 12


async def kill_when(site: Site, job_id: str, spec: JobSpec, reached: Callable[[], bool]) -> bool:
    """Kill a job, tar in full swing, when a moment has come. False: it was done before."""
    await site.jobs.start(job_id, spec)
    async with asyncio.timeout(60):
        while not _has_come(reached):
            fact = await site.jobs.status(job_id)
            assert fact is not None
            if fact.state != JobState.RUNNING:
                assert fact.state == JobState.SUCCEEDED, fact
                return False
    await site.jobs.cancel(job_id)
    fact = await site.jobs.status(job_id)
    assert fact is not None
    return fact.state == JobState.GONE


def _has_come(reached: Callable[[], bool]) -> bool:
    """A directory may be renamed away by the job while it is being listed: then it has not come."""
    try:
        return reached()
    except FileNotFoundError:
        return False


async def kill_at_moments(
    site: Site, spec: JobSpec, reached: Callable[[int], bool], check: Callable[[bool], object]
) -> None:
    """Kill a job again and again, each time later in its stream. One that was faster is not counted.

    `check` is told whether the job was killed.
    """
    kills = 0
    for attempt in range(8 * MOMENTS):
        moment = kills
        killed = await kill_when(site, f"attempt-{attempt}", spec, lambda: reached(moment))  # noqa: B023
        await asyncio.to_thread(check, killed)
        kills += killed
        if kills == MOMENTS:
            return
    raise AssertionError(f"only {kills} kills came in time")


def add_bulk(home: Path, megabytes: int) -> None:
    (home / "bulk").mkdir()
    for number in range(megabytes):
        (home / "bulk" / f"{number}").write_bytes(os.urandom(1 << 20))


async def test_an_archive_that_is_killed_in_the_middle_of_its_stream(site: Site) -> None:
    await site.make_home()
    add_bulk(site.home, 48)
    before = tree_hash(site.home)
    folder = site.archives_root / "w1/a1"

    def reached(moment: int) -> bool:
        return sum(_size(path) for path in folder.glob("*#*")) >= moment * (2 << 20)

    def check(killed: bool) -> None:
        assert tree_hash(site.home) == before
        archive = asyncio.run(site.store.find("w1", "a1"))
        assert killed or archive is not None
        if archive is not None:
            shutil.rmtree(folder)

    await kill_at_moments(site, site.archive_job(), reached, check)
    await site.done("archive", site.archive_job())
    assert sorted(path.name for path in folder.iterdir()) == [".meta", "home.tar.zst"]
    await site.done("delete", site.delete_job())
    await site.done("restore", site.restore_job())
    assert tree_hash(site.home) == before


async def test_a_restore_that_is_killed_in_the_middle_of_its_stream(site: Site) -> None:
    await site.make_home()
    add_bulk(site.home, 48)
    before = tree_hash(site.home)
    await site.done("archive", site.archive_job())
    await site.done("delete", site.delete_job())
    staging = site.home.parent / ".staging-op2"

    def reached(moment: int) -> bool:
        return staging.exists() and len(list(staging.glob("bulk/*"))) >= 2 * moment

    def check(killed: bool) -> None:
        fact = asyncio.run(site.volumes.status(KEY))
        assert fact in (None, VolumeFact(RESTORED))
        assert killed or fact is not None
        if fact is not None:
            assert tree_hash(site.home) == before
            subprocess.run(["rm", "-rf", site.home.parent], check=True)

    await kill_at_moments(site, site.restore_job(), reached, check)
    await site.done("restore", site.restore_job())
    assert tree_hash(site.home) == before
    assert site.beside_home() == {".lock", ".fence", ".marker", "home"}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
