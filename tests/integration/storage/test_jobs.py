"""Life of storage jobs as processes: started once, observed, cancelled, forgotten."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from codehub.domain.observation import JobState
from codehub.domain.states import ErrorReason
from codehub.storage.errors import JobIsRunning, TooManyArchives
from codehub.storage.jobs.local_jobs import LocalJobs
from codehub.storage.jobs.report import Reporter
from codehub.storage.jobs.spec import dump_spec, load_spec
from codehub.storage.jobs.work import JobContext, run_job
from tests.integration.storage.conftest import KEY, StorageFixture, on_both_stores
from tests.waiting import until


async def test_a_job_that_waits_for_its_home_runs_and_can_be_cancelled(storage: StorageFixture) -> None:
    await storage.make_home()
    assert await storage.jobs.status("archive") is None
    async with storage.volumes.hold(KEY, epoch=1):
        await storage.jobs.start("archive", storage.archive_job())
        fact = await storage.jobs.status("archive")
        assert fact is not None
        assert fact.state == JobState.RUNNING
        with pytest.raises(JobIsRunning):
            await storage.jobs.forget("archive")
        await storage.jobs.cancel("archive")
        fact = await storage.jobs.status("archive")
        assert fact is not None
        assert fact.state == JobState.GONE
    await storage.done("archive", storage.archive_job())
    await storage.jobs.cancel("archive")
    assert await storage.jobs.list() == ["archive"]
    await storage.jobs.forget("archive")
    assert await storage.jobs.list() == []
    assert await storage.jobs.status("archive") is None
    assert list((storage.root / "jobs").iterdir()) == []


async def test_a_job_that_never_gets_its_home_fails(storage: StorageFixture) -> None:
    await storage.make_home()
    async with storage.volumes.hold(KEY, epoch=1):
        fact = await storage.run("archive", storage.archive_job())
    assert fact.state == JobState.FAILED
    assert "a storage job is working" in fact.message


async def test_archives_above_the_limit_wait_and_other_jobs_do_not(storage: StorageFixture) -> None:
    await storage.make_home()
    jobs = LocalJobs(storage.root / "jobs", archives_at_once=1)
    async with storage.volumes.hold(KEY, epoch=1):
        await jobs.start("restore", storage.restore_job())
        await jobs.start("first", storage.archive_job())
        await jobs.start("first", storage.archive_job())
        with pytest.raises(TooManyArchives):
            await jobs.start("second", storage.archive_job("a2"))
        assert await jobs.status("second") is None
        for name in ("first", "restore"):
            fact = await jobs.status(name)
            assert fact is not None and fact.state == JobState.RUNNING
        await jobs.cancel("restore")
    assert (await storage.ended("first")).state == JobState.SUCCEEDED
    await jobs.start("second", storage.archive_job("a2"))
    assert (await storage.ended("second")).state == JobState.SUCCEEDED


async def test_many_starters_start_one_job(storage: StorageFixture) -> None:
    await storage.make_home()
    async with storage.volumes.hold(KEY, epoch=1):
        await asyncio.gather(*(storage.jobs.start("archive", storage.archive_job()) for _ in range(20)))
        assert len(_processes(storage.root / "jobs" / "archive")) == 1
    fact = await storage.ended("archive")
    assert fact.state == JobState.SUCCEEDED
    await storage.jobs.start("archive", storage.archive_job())
    assert _processes(storage.root / "jobs" / "archive") == []


async def test_a_job_outlives_its_starter_and_gets_no_secrets(storage: StorageFixture) -> None:
    await storage.make_home()
    script = (
        "import asyncio, os, signal, sys\n"
        "from pathlib import Path\n"
        "from codehub.storage.jobs.local_jobs import LocalJobs\n"
        "from codehub.storage.jobs.spec import load_spec\n"
        "secret = os.open('/dev/null', os.O_RDONLY); os.set_inheritable(secret, True)\n"
        "os.environ['DATABASE_URL'] = 'secret'; os.environ['AWS_SESSION_TOKEN'] = 'passed'\n"
        "asyncio.run(LocalJobs(Path(sys.argv[1])).start('archive', load_spec(sys.stdin.buffer.read())))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    async with storage.volumes.hold(KEY, epoch=1):
        ended = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", script, str(storage.root / "jobs")],
            input=dump_spec(storage.archive_job()),
            check=False,
        )
        assert ended.returncode == -signal.SIGKILL
        (pid,) = _processes(storage.root / "jobs" / "archive")
        assert os.getsid(pid) == pid
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"DATABASE_URL" not in environment
        assert b"AWS_SESSION_TOKEN=passed" in environment
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert (await storage.ended("archive")).state == JobState.SUCCEEDED


async def test_an_ended_job_leaves_no_zombie(storage: StorageFixture) -> None:
    await storage.done("empty", storage.empty_archive_job())
    await until(lambda: not _children_that_are_zombies(), "the ended job to be reaped")


@pytest.mark.parametrize("left", [b"", b'{"bytes": 1', b"\0\0\0\0", b"[]", b'{"unknown": 1}'])
async def test_damaged_progress_counts_as_none(storage: StorageFixture, left: bytes) -> None:
    await storage.done("empty", storage.empty_archive_job())
    (storage.root / "jobs/empty/progress.json").write_bytes(left)
    fact = await storage.jobs.status("empty")
    assert fact is not None
    assert (fact.state, fact.progress) == (JobState.SUCCEEDED, None)


async def test_reading_an_archive_back_reports_progress(storage: StorageFixture) -> None:
    """Otherwise the archive of a huge home would time out during its verification."""
    await storage.make_home()
    (storage.home / "big").write_bytes(os.urandom(20 << 20))
    reported: list[int] = []

    class RecordingReporter(Reporter):
        def progress(self, done: int, files: int) -> None:
            reported.append(done)

    done = await asyncio.to_thread(
        run_job, storage.archive_job(), JobContext(RecordingReporter(storage.root), storage.root)
    )
    assert done.archive is not None
    assert len([bytes_ for bytes_ in reported if bytes_ > done.archive.unpacked]) >= 2
    assert reported[-1] == done.archive.unpacked + done.archive.bytes
    assert reported == sorted(reported)


@on_both_stores
async def test_progress_is_reported_while_a_job_runs(storage: StorageFixture) -> None:
    await storage.make_home()
    fact = await storage.done("archive", storage.archive_job())
    assert fact.progress is not None
    assert fact.progress.bytes > 0
    await storage.done("delete", storage.delete_job())
    fact = await storage.done("restore", storage.restore_job())
    archive = await storage.store.find("w1", "a1")
    assert archive is not None
    assert fact.progress is not None
    assert fact.progress.total == archive.unpacked


async def test_specs_survive_a_round_trip(storage: StorageFixture) -> None:
    for spec in (
        storage.archive_job(),
        storage.empty_archive_job(),
        storage.restore_job(),
        storage.delete_job(),
    ):
        assert load_spec(dump_spec(spec)) == spec


async def test_a_spec_that_cannot_be_read_is_a_failure_with_a_reason(storage: StorageFixture) -> None:
    directory = storage.root / "jobs" / "broken"
    directory.mkdir(parents=True)
    (directory / "spec.json").write_text("{")
    command = [sys.executable, "-m", "codehub.storage.jobs.program", str(directory)]
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False)
    assert ended.returncode == 1
    fact = await storage.jobs.status("broken")
    assert fact is not None
    assert (fact.state, fact.reason) == (JobState.FAILED, ErrorReason.ActionFailed)


def _processes(job: Path) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"codehub.storage.jobs.program" in arguments and os.fsencode(job) in arguments:
            found.append(int(process.name))
    return found


def _children_that_are_zombies() -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] == "Z" and int(fields[1]) == os.getpid():
            found.append(process.name)
    return found
