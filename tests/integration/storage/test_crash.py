"""Jobs killed at any moment: nothing half done ever counts as done, and the next run completes it."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from codehub.domain.observation import Generation, JobState, VolumeFact
from codehub.storage.jobspec import JobSpec, dump_spec
from tests.integration.storage.conftest import FIRST, KEY, Site
from tests.trees import tree_hash

RESTORED = Generation("op2", "w1/a1/home.tar.zst")
CRASHING_JOB = Path(__file__).with_name("crashing_job.py")
MOST_EFFECTS = 120
MOMENTS = 12


def nothing() -> None:
    """No preparation is needed."""


async def crash_at_each_effect(
    site: Site,
    spec: JobSpec,
    *,
    prepare: Callable[[], object] = nothing,
    check: Callable[[], bool],
    undo: Callable[[], object] = nothing,
) -> None:
    """Kill the job before its first effect, then before its second, ... until there is none left.

    After each crash `check` says whether the job's work counts as done; then the job is run again, and ends.
    """
    done: list[bool] = []
    for number in range(1, MOST_EFFECTS):
        await asyncio.to_thread(prepare)
        directory = site.root / "jobs" / f"crash-{number}"
        directory.mkdir(parents=True)
        (directory / "spec.json").write_bytes(dump_spec(spec))
        code = await asyncio.to_thread(_run_crashing, number, directory)
        assert code in (0, -signal.SIGKILL), site.log(directory.name)
        done.append(await asyncio.to_thread(check))
        await site.done(directory.name, spec)
        assert await asyncio.to_thread(check)
        await asyncio.to_thread(undo)
        if code == 0:
            break
    assert len(done) > 10
    assert not done[0]
    assert done[-1]


def _run_crashing(number: int, directory: Path) -> int:
    with (directory / "log").open("wb") as log:
        command = [sys.executable, str(CRASHING_JOB), str(number), str(directory)]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
        return subprocess.run(command, stdout=log, stderr=log, env=environment, check=False).returncode


async def test_an_archive_that_is_killed_at_each_effect(site: Site) -> None:
    await site.make_home(files=5)
    before = tree_hash(site.home)

    def check() -> bool:
        assert tree_hash(site.home) == before
        return asyncio.run(site.store.find("w1", "a1")) is not None

    def undo() -> None:
        shutil.rmtree(site.archives_root / "w1")

    await crash_at_each_effect(site, site.archive_job(), check=check, undo=undo)
    await site.done("archive", site.archive_job())
    await site.done("delete", site.delete_job())
    await site.done("restore", site.restore_job())
    assert tree_hash(site.home) == before


async def test_a_restore_that_is_killed_at_each_effect(site: Site) -> None:
    await site.make_home(files=5)
    before = tree_hash(site.home)
    await site.done("archive", site.archive_job())
    await site.done("delete", site.delete_job())

    def check() -> bool:
        fact = asyncio.run(site.volumes.status(KEY))
        assert fact in (None, VolumeFact(RESTORED))
        assert fact is None or tree_hash(site.home) == before
        return fact is not None

    def undo() -> None:
        assert site.beside_home() == {".lock", ".fence", ".marker", "home"}
        subprocess.run(["rm", "-rf", site.home.parent], check=True)

    await crash_at_each_effect(site, site.restore_job(), check=check, undo=undo)


async def test_a_delete_that_is_killed_at_each_effect(site: Site) -> None:
    def prepare() -> None:
        asyncio.run(site.volumes.provision(KEY, FIRST, 1, None))
        (site.home / "work").write_text("x")

    def check() -> bool:
        fact = asyncio.run(site.volumes.status(KEY))
        assert fact in (None, VolumeFact(FIRST))
        assert fact is None or (site.home / "work").exists()
        return fact is None

    def undo() -> None:
        assert site.beside_home() == {".lock", ".fence"}

    await crash_at_each_effect(site, site.delete_job(), prepare=prepare, check=check, undo=undo)


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
