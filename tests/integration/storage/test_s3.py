"""Storage jobs with an S3-compatible service."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from codehub.domain.observation import VolumeFact
from codehub.storage.archive.archives import BlockingArchiveStore
from codehub.storage.archive.async_archive_store import ArchiveStore
from codehub.storage.archive.object_store import part_size
from codehub.storage.archive.open_object_store import open_object_store
from codehub.storage.archive.s3_object_store import UPLOAD_MEMORY
from codehub.storage.archive.s3_requests import S3Requests
from tests.faulty_proxy import Fault, FaultyProxy
from tests.integration.storage.conftest import FIRST, INSTALLATION, KEY, StorageFixture
from tests.s3 import S3Server, use
from tests.trees import tree_hash
from tests.waiting import PATIENCE, until

CHUNK = 1 << 20


async def test_a_home_goes_to_a_service_and_comes_back(storage: StorageFixture, s3_url: str) -> None:
    storage.location = replace(storage.location, archive_url=s3_url)
    await storage.store.initialise()
    await storage.make_home()
    (storage.home / "bulk").write_bytes(os.urandom(30 << 20))
    before = tree_hash(storage.home)
    await storage.done("archive", storage.archive_job())
    assert [archive.complete for archive in await storage.store.list()] == [True]
    assert await storage.volumes.status(KEY) == VolumeFact(FIRST)
    await storage.done("delete", storage.delete_job())
    await storage.done("restore", storage.restore_job())
    assert tree_hash(storage.home) == before
    await storage.store.remove("w1/a1/home.tar.zst")
    assert await storage.store.find("w1", "a1") is None
    assert await storage.store.list() == []


async def test_a_service_has_no_disk_reserve(storage: StorageFixture, s3_url: str) -> None:
    storage.location = replace(storage.location, archive_url=s3_url)
    await storage.store.initialise()
    await storage.make_home()
    more_than_there_is = 2 * shutil.disk_usage(storage.root).total
    await storage.done("archive", storage.archive_job(reserve=more_than_there_is))


@pytest.mark.parametrize("has_credentials", [True, False])
async def test_missing_permission_to_list_uploads_is_detected(
    s3_url: str, monkeypatch: pytest.MonkeyPatch, has_credentials: bool
) -> None:
    """`codehub doctor` reports it; a lifecycle rule has to remove the uploads instead of GC."""
    store = ArchiveStore(s3_url, INSTALLATION)
    await store.initialise()
    if not has_credentials:
        monkeypatch.setattr(S3Requests, "from_environment", lambda _bucket: None)
    assert await store.can_list_unfinished() is has_credentials


@dataclass
class Stream:
    """Iterable over chunks that counts those taken."""

    chunks: int
    taken: int = 0

    def __iter__(self) -> Iterator[bytes]:
        for _ in range(self.chunks):
            self.taken += 1
            yield bytes(CHUNK)


async def test_a_slow_service_holds_the_stream_back(
    s3_server: S3Server, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a job would hold the whole home in memory."""
    with FaultyProxy.in_front_of(s3_server.endpoint) as proxy:
        use(s3_server.environment(proxy.endpoint), monkeypatch)
        objects = open_object_store(s3_url)
        proxy.delay = PATIENCE
        proxy.break_requests("parts", Fault.SLOW, "PUT", "partNumber")
        stream = Stream(200)
        upload = asyncio.create_task(asyncio.to_thread(objects.upload, "home", stream, lambda: 1000))
        under_way = UPLOAD_MEMORY // part_size(0)
        await until(lambda: sum(method == "PUT" for method, _ in proxy.seen) >= under_way, "the first parts")
        for number in range(
            5
        ):  # whatever is not held back has come by the time that others have been written
            await asyncio.to_thread(objects.write, f"other-{number}", bytes(CHUNK))
        held = stream.taken * CHUNK
        assert not upload.done()
        assert UPLOAD_MEMORY <= held <= UPLOAD_MEMORY + 3 * part_size(0)
        proxy.released.set()
        assert await upload
        assert objects.size("home") == 200 * CHUNK


async def test_a_service_that_keeps_no_checksums_and_lists_no_uploads_has_its_archives_read_back(
    storage: StorageFixture, s3_server: S3Server, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultyProxy.in_front_of(s3_server.endpoint) as proxy:
        use(s3_server.environment(proxy.endpoint), monkeypatch)
        storage.location = replace(storage.location, archive_url=s3_url)
        await storage.store.initialise()
        proxy.break_requests("checksums", Fault.UNABLE, "HEAD", "home.tar.zst")
        assert not BlockingArchiveStore(s3_url, INSTALLATION).upload(
            "w1/a0/home.tar.zst", [b"x"], lambda: 1000
        )
        proxy.heal("checksums")
        proxy.break_requests("uploads", Fault.UNABLE, "GET", "uploads=")
        await storage.make_home()
        await storage.done("archive", storage.archive_job())
        assert [archive.archive_op_id for archive in await storage.store.list() if archive.complete] == ["a1"]


async def test_credentials_from_elsewhere_are_enough_for_everything_else(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test hides the variables from S3Requests, as if the library had the role of a machine."""
    archives = BlockingArchiveStore(s3_url, INSTALLATION)
    archives.initialise()
    monkeypatch.setattr(S3Requests, "from_environment", lambda bucket: None)
    assert not archives.upload("w1/a1/home.tar.zst", [b"12345"], lambda: 1000)
    assert [archive.key for archive in archives.list()] == ["w1/a1/home.tar.zst"]
    archives.remove("w1/a1/home.tar.zst")
    assert archives.list() == []
