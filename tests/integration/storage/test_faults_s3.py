"""Failing S3 service: a job reports why in bounded time, loses nothing, and the next one succeeds.

Every case has its own store and home behind one faulty proxy. The cases run in parallel.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from codehub.domain.observation import JobFact, JobState, VolumeFact
from codehub.domain.states import ErrorReason
from codehub.storage.archive.open_object_store import open_object_store
from codehub.storage.jobs.program import SPEC
from codehub.storage.jobs.report import Reporter, read_ended
from codehub.storage.jobs.spec import JobSpec, dump_spec
from codehub.storage.jobs.work import JobContext, run_job
from tests.faulty_proxy import Fault, FaultyProxy
from tests.integration.storage.conftest import FIRST, KEY, StorageFixture, storage_at
from tests.s3 import S3Server, new_store_url, use
from tests.selection import sample
from tests.services import run
from tests.trees import tree_hash
from tests.waiting import PATIENCE

UNREACHABLE, CORRUPTED = ErrorReason.Unreachable, ErrorReason.ArchiveCorrupted
TOGETHER = 6
HANGING = {"AWS_TIMEOUT": "1s"}
PARTS, BEGIN, COMPLETE = ("PUT", "partNumber="), ("POST", "uploads"), ("POST", "uploadId=")
OBJECT, HEAD = ("GET", "home.tar.zst"), ("HEAD", "home.tar.zst")


@dataclass(frozen=True)
class Case:
    """Requests of a job that fail, and the message that the job has to report."""

    fault: Fault
    requests: tuple[str, str]
    message: str
    reason: ErrorReason = UNREACHABLE


ARCHIVE = {
    "parts: 500": Case(Fault.ERROR, PARTS, "it answered 500 Internal Server Error"),
    "parts: SlowDown": Case(Fault.SLOW_DOWN, PARTS, "it answered 503 Service Unavailable (SlowDown)"),
    "parts: hang": Case(Fault.HANG, PARTS, "it did not answer in time"),
    "parts: closed halfway": Case(Fault.CLOSE, PARTS, "the connection to it broke"),
    "parts: bit flipped": Case(Fault.FLIP, PARTS, "it answered 400 Bad Request (XAmzContentSHA256Mismatch)"),
    "begin: 500": Case(Fault.ERROR, BEGIN, "it answered 500 Internal Server Error"),
    "complete: 500": Case(Fault.ERROR, COMPLETE, "it answered 500 Internal Server Error"),
    "complete: hang": Case(Fault.HANG, COMPLETE, "it did not answer in time"),
    "checksum: 500": Case(Fault.ERROR, HEAD, "it answered 500 Internal Server Error"),
    "meta: 500": Case(Fault.ERROR, ("PUT", "/.meta"), "it answered 500 Internal Server Error"),
    "everything: 500": Case(Fault.ERROR, ("GET", ""), "it answered 500 Internal Server Error"),
}
RESTORE = {
    "object: 500": Case(Fault.ERROR, OBJECT, "it answered 500 Internal Server Error"),
    "object: SlowDown": Case(Fault.SLOW_DOWN, OBJECT, "it answered 503 Service Unavailable (SlowDown)"),
    "object: hang": Case(Fault.HANG, OBJECT, "it did not answer in time"),
    "object: closed halfway": Case(Fault.CLOSE, OBJECT, "the connection to it broke"),
    "object: truncated": Case(Fault.TRUNCATE, OBJECT, "returned fewer bytes than requested"),
    "object: bit flipped": Case(Fault.FLIP, OBJECT, "the archive cannot be decompressed", CORRUPTED),
    "size: 500": Case(Fault.ERROR, HEAD, "it answered 500 Internal Server Error"),
    "meta: 500": Case(Fault.ERROR, ("GET", "/.meta"), "it answered 500 Internal Server Error"),
    "meta: hang": Case(Fault.HANG, ("GET", "/.meta"), "it did not answer in time"),
    "marker: SlowDown": Case(
        Fault.SLOW_DOWN, ("GET", ".codehub-installation"), "it answered 503 Service Unavailable (SlowDown)"
    ),
}
ARCHIVES = sample(list(ARCHIVE), 4, "faults of a service while it archives")
RESTORES = sample(list(RESTORE), 4, "faults of a service while it restores")


class FaultyService:
    """One case, with its own storage and store, behind the shared proxy."""

    def __init__(self, root: Path, server: S3Server, proxy: FaultyProxy, case: Case) -> None:
        self.case, self.proxy, self.server = case, proxy, server
        self.storage: StorageFixture = storage_at(root)
        self.storage.location = replace(self.storage.location, archive_url=new_store_url())
        self.context = JobContext(Reporter(root), root)
        run(self.storage.initialise())
        run(self.storage.make_home())
        (self.storage.home / "bulk").write_bytes(os.urandom(9 << 20))
        self.tree = tree_hash(self.storage.home)

    def fail(self, spec: JobSpec) -> JobFact:
        name = self.storage.location.archive_url.rpartition("/")[2]
        method, path = self.case.requests
        self.proxy.break_requests(name, self.case.fault, method, name, path)
        try:
            return self._job(spec)
        finally:
            self.proxy.heal(name)

    def _job(self, spec: JobSpec) -> JobFact:
        directory = self.storage.root / "jobs" / "job"
        directory.mkdir(parents=True)
        (directory / SPEC).write_bytes(dump_spec(spec))
        environment = os.environ | self.server.environment(self.proxy.endpoint)
        if self.case.fault is Fault.HANG:
            environment |= HANGING
        command = [sys.executable, "-m", "codehub.storage.jobs.program", directory]
        subprocess.run(command, env=environment, capture_output=True, check=False, timeout=PATIENCE)
        return read_ended(directory)

    def names(self) -> set[str]:
        return {stored.path for stored in open_object_store(self.storage.location.archive_url).list()}

    def archive(self) -> JobFact:
        """Archive a home, which fails, and again, which succeeds; the home never changes."""
        storage = self.storage
        fact = self.fail(storage.archive_job())
        assert run(storage.store.find("w1", "a1")) is None
        assert "w1/a1/.meta" not in self.names()
        assert tree_hash(storage.home) == self.tree
        assert run(storage.volumes.status(KEY)) == VolumeFact(FIRST)
        run_job(storage.archive_job(), self.context)
        assert run(storage.store.find("w1", "a1")) is not None
        assert self.names() == {".codehub-installation", "w1/a1/home.tar.zst", "w1/a1/.meta"}
        return fact

    def restore(self) -> JobFact:
        """Restore a home, which fails and leaves no volume, and again, which succeeds."""
        storage = self.storage
        run_job(storage.archive_job(), self.context)
        run_job(storage.delete_job(), self.context)
        fact = self.fail(storage.restore_job())
        assert run(storage.volumes.status(KEY)) is None
        assert storage.beside_home() == {".lock", ".fence"}
        assert run(storage.store.find("w1", "a1")) is not None
        run_job(storage.restore_job(), self.context)
        assert tree_hash(storage.home) == self.tree
        return fact


@pytest.fixture(scope="module")
def outcomes(
    s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[tuple[str, str], Future[JobFact]]]:
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        FaultyProxy.in_front_of(s3_server.endpoint) as proxy,
        ThreadPoolExecutor(TOGETHER) as pool,
    ):
        use(s3_server.environment(), monkeypatch)

        def play(operation: str, case: Case) -> JobFact:
            service = FaultyService(tmp_path_factory.mktemp(operation), s3_server, proxy, case)
            return service.archive() if operation == "archive" else service.restore()

        began = {("archive", name): pool.submit(play, "archive", ARCHIVE[name]) for name in ARCHIVES}
        began |= {("restore", name): pool.submit(play, "restore", RESTORE[name]) for name in RESTORES}
        yield began


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_survives_a_failing_service(
    outcomes: dict[tuple[str, str], Future[JobFact]], name: str
) -> None:
    fact = outcomes["archive", name].result()
    assert (fact.state, fact.reason) == (JobState.FAILED, ARCHIVE[name].reason), fact
    assert ARCHIVE[name].message in fact.message


@pytest.mark.parametrize("name", RESTORES)
def test_a_restore_survives_a_failing_service(
    outcomes: dict[tuple[str, str], Future[JobFact]], name: str
) -> None:
    fact = outcomes["restore", name].result()
    assert (fact.state, fact.reason) == (JobState.FAILED, RESTORE[name].reason), fact
    assert RESTORE[name].message in fact.message
