"""Fixtures: storage of one installation on a temporary disk, with jobs as real processes."""

import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from codehub.domain.observation import Generation, JobFact, JobState
from codehub.storage.archive.async_archive_store import ArchiveStore
from codehub.storage.archive.open_object_store import open_object_store
from codehub.storage.jobs.local_jobs import LocalJobs
from codehub.storage.jobs.spec import (
    ArchiveJob,
    DeleteJob,
    EmptyArchiveJob,
    JobSpec,
    RestoreJob,
    StorageLocation,
)
from codehub.storage.volumes.local_volumes import LocalVolumes
from tests.s3 import S3Server, begin_upload
from tests.services import short_temp_dir
from tests.trees import make_tree
from tests.waiting import eventually

KEY = "users/u1/workspaces/w1/home"
FIRST = Generation("op1", None)
INSTALLATION = "installation-1"
on_both_stores = pytest.mark.parametrize("storage", ["directory", "s3"], indirect=True)
"""Run a test with archives in a directory and on a real S3 server."""


@dataclass
class StorageFixture:
    """Volumes, archive store and jobs of one installation."""

    root: Path
    location: StorageLocation
    server: S3Server | None = None
    """The server that has the archives, unless they are in a directory."""

    @property
    def volumes(self) -> LocalVolumes:
        return LocalVolumes(self.location.volumes_root, INSTALLATION)

    @property
    def store(self) -> ArchiveStore:
        return ArchiveStore(self.location.archive_url, INSTALLATION)

    @property
    def jobs(self) -> LocalJobs:
        return LocalJobs(self.root / "jobs")

    @property
    def home(self) -> Path:
        return self.volumes.path(KEY)

    @property
    def archives_root(self) -> Path:
        """The files behind the objects, to inspect and to damage."""
        if self.server is not None:
            return self.server.file(self.location.archive_url, "")
        return Path(self.location.archive_url.removeprefix("file://"))

    def stored_names(self) -> set[str]:
        """Return all objects but the marker, with unfinished uploads."""
        listed = open_object_store(self.location.archive_url).list()
        return {stored.path for stored in listed} - {".codehub-installation"}

    def leave_unfinished(self, path: str) -> None:
        """Leave what a killed upload leaves."""
        if self.server is not None:
            begin_upload(self.location.archive_url, path)
        else:
            (self.archives_root / f"{path}#1").write_bytes(b"an abandoned one")

    async def initialise(self) -> None:
        self.volumes.initialise()
        await self.store.initialise()

    async def make_home(self, seed: int = 1, files: int = 40) -> None:
        await self.volumes.provision(KEY, FIRST, epoch=1, uid=None)
        make_tree(self.home, seed, files)

    def archive_job(self, archive_op_id: str = "a1", **changes: object) -> ArchiveJob:
        job = ArchiveJob(self.location, "w1", KEY, FIRST, archive_op_id, epoch=1, reserve=0)
        return replace(job, **changes)  # type: ignore[arg-type]

    def empty_archive_job(self, archive_op_id: str = "a1", uid: int | None = None) -> EmptyArchiveJob:
        return EmptyArchiveJob(self.location, "w1", KEY, archive_op_id, uid, epoch=1)

    def restore_job(self, op_id: str = "op2", **changes: object) -> RestoreJob:
        job = RestoreJob(self.location, "w1", KEY, op_id, "w1/a1/home.tar.zst", None, epoch=1, reserve=0)
        return replace(job, **changes)  # type: ignore[arg-type]

    def delete_job(self, generation: Generation | None = FIRST, **changes: object) -> DeleteJob:
        return replace(DeleteJob(self.location, "w1", KEY, generation, epoch=1), **changes)  # type: ignore[arg-type]

    async def run(self, job_id: str, spec: JobSpec) -> JobFact:
        """Start a job, and wait until it ends."""
        await self.jobs.start(job_id, spec)
        return await self.ended(job_id)

    async def ended(self, job_id: str) -> JobFact:
        jobs = self.jobs
        fact = await eventually(
            lambda: jobs.status(job_id),
            f"the job {job_id} to end",
            lambda seen: seen is not None and seen.state is not JobState.RUNNING,
        )
        assert fact is not None
        return fact

    async def done(self, job_id: str, spec: JobSpec) -> JobFact:
        fact = await self.run(job_id, spec)
        assert fact.state == JobState.SUCCEEDED, (fact, self.log(job_id))
        return fact

    def log(self, job_id: str) -> str:
        return (self.root / "jobs" / job_id / "log").read_text()

    def beside_home(self) -> set[str]:
        """Return the names in the workspace's directory, except for unfinished files."""
        return {path.name for path in self.home.parent.iterdir() if path.suffix != ".tmp"}


def storage_at(root: Path, volumes: Path | None = None, archives: Path | None = None) -> StorageFixture:
    return StorageFixture(
        root,
        StorageLocation(volumes or root / "volumes", f"file://{archives or root / 'archives'}", INSTALLATION),
    )


@pytest.fixture
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StorageFixture]:
    """Storage with archives in a directory, unless a test asks for both kinds of store."""
    storage = storage_at(tmp_path)
    if getattr(request, "param", "directory") == "s3":
        storage.location = replace(storage.location, archive_url=request.getfixturevalue("s3_url"))
        storage.server = request.getfixturevalue("s3_server")
    await storage.initialise()
    yield storage
    for job_id in await storage.jobs.list():
        await storage.jobs.cancel(job_id)


@contextmanager
def quota_disk() -> Iterator[Path]:
    """Mount an ext4 of 300 MiB with user quotas, or skip the test if the kernel cannot."""
    directory = short_temp_dir()
    image, disk = directory / "image", directory / "disk"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(300 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-O", "quota", image], check=True)
    mounted = subprocess.run(
        ["mount", "-o", "loop,usrquota", image, disk], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        shutil.rmtree(directory)
        pytest.skip(f"this kernel mounts no file system with user quotas: {mounted.stderr.strip()}")
    disk.chmod(0o711)
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)
    shutil.rmtree(directory)


@asynccontextmanager
async def small_disk(path: Path, megabytes: int, inodes: int | None = None) -> AsyncIterator[None]:
    """Mount a small file system, or skip the test if that is not possible."""
    path.mkdir(parents=True)
    limits = f"size={megabytes}m,mode=711" + ("" if inodes is None else f",nr_inodes={inodes}")
    options = ["-t", "tmpfs", "-o", limits, "tmpfs", str(path)]
    mounted = subprocess.run(["mount", *options], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
