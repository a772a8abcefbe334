"""Archive store in a directory and on a real S3 server: complete means object and `.meta`."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from codehub.domain.archive_keys import archive_key
from codehub.domain.observation import ArchiveFact
from codehub.storage.archive.archives import BlockingArchiveStore
from codehub.storage.archive.async_archive_store import ArchiveStore
from codehub.storage.archive.open_object_store import open_object_store
from codehub.storage.errors import CorruptedArchive, InvalidKey, StorageProblem, Unobservable
from tests.s3 import begin_upload, new_store_url
from tests.waiting import wait_for

SHA = "ab" * 32


@dataclass(frozen=True)
class StoreFixture:
    """Store under test, and direct access to its content."""

    url: str

    @property
    def is_service(self) -> bool:
        return self.url.startswith("s3:")

    def other(self) -> "StoreFixture":
        """Return an empty store of the same kind."""
        return StoreFixture(new_store_url() if self.is_service else f"{self.url}-other")

    def write(self, path: str, content: bytes) -> None:
        open_object_store(self.url, create=True).write(path, content)

    def read(self, path: str) -> bytes | None:
        return open_object_store(self.url).read(path)

    def remove(self, path: str) -> None:
        open_object_store(self.url).remove(path)

    def names(self) -> set[str]:
        """Return all objects, with unfinished uploads."""
        return {stored.path for stored in open_object_store(self.url).list()}

    def leave_unfinished(self, key: str) -> None:
        """Leave what a killed upload leaves."""
        if self.is_service:
            begin_upload(self.url, key)
        else:
            path = Path(self.url.removeprefix("file://")) / f"{key}#1"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"killed")


@pytest.fixture(params=["directory", "s3"])
def backing(request: pytest.FixtureRequest, tmp_path: Path) -> StoreFixture:
    if request.param == "s3":
        return StoreFixture(request.getfixturevalue("s3_url"))
    return StoreFixture(f"file://{tmp_path}/archives")


@pytest.fixture
def archives(backing: StoreFixture) -> BlockingArchiveStore:
    archives = BlockingArchiveStore(backing.url, "installation-1")
    archives.initialise()
    return archives


@pytest.fixture
def store(archives: BlockingArchiveStore, backing: StoreFixture) -> ArchiveStore:
    return ArchiveStore(backing.url, "installation-1")


def put(
    archives: BlockingArchiveStore, workspace_id: str, archive_op_id: str, content: bytes = b"12345"
) -> ArchiveFact:
    key = archive_key(workspace_id, archive_op_id)
    archives.upload(key, [content], lambda: 1000)
    fact = ArchiveFact(workspace_id, archive_op_id, key, SHA, len(content), 10, 1)
    archives.commit(fact)
    return fact


async def test_an_archive_is_found_once_object_and_meta_are_there(
    archives: BlockingArchiveStore, store: ArchiveStore
) -> None:
    assert await store.find("w1", "a1") is None
    archives.upload("w1/a1/home.tar.zst", [b"12", b"345"], lambda: 1000)
    assert await store.find("w1", "a1") is None
    fact = ArchiveFact("w1", "a1", "w1/a1/home.tar.zst", SHA, 5, 10, 1)
    archives.commit(fact)
    assert await store.find("w1", "a1") == fact
    assert await store.find("w1", "a2") is None


def test_a_stream_of_unknown_length_is_read_back_as_it_was(archives: BlockingArchiveStore) -> None:
    """Several parts, and chunks with other boundaries than the parts."""
    written = hashlib.sha256()

    def chunks() -> Iterator[bytes]:
        for size in (1, 3 << 20, (8 << 20) - 1, 0, 11 << 20, 17):
            chunk = os.urandom(size)
            written.update(chunk)
            yield chunk

    archives.upload("w1/a1/home.tar.zst", chunks(), lambda: 1000)
    size = archives.size("w1/a1/home.tar.zst")
    assert size == (22 << 20) + 17
    read = hashlib.sha256()
    for chunk in archives.read(ArchiveFact("w1", "a1", "w1/a1/home.tar.zst", SHA, size, 0, 0)):
        read.update(chunk)
    assert read.digest() == written.digest()


def test_a_service_confirms_what_it_has_and_a_directory_is_read_back(
    archives: BlockingArchiveStore, backing: StoreFixture
) -> None:
    for number, size in enumerate((5, 8 << 20, (8 << 20) + 1, 20 << 20)):
        confirmed = archives.upload(f"w1/a{number}/home.tar.zst", [os.urandom(size)], lambda: 1000)
        assert confirmed == backing.is_service


async def test_meta_is_the_text_that_is_specified(
    archives: BlockingArchiveStore, backing: StoreFixture
) -> None:
    put(archives, "w1", "a1")
    assert backing.read("w1/a1/.meta") == f"sha256:{SHA}\nbytes=5 unpacked=10 entries=1\n".encode()


async def test_a_meta_without_its_object_is_not_an_archive(
    archives: BlockingArchiveStore, store: ArchiveStore, backing: StoreFixture
) -> None:
    put(archives, "w1", "a1")
    backing.remove("w1/a1/home.tar.zst")
    assert await store.find("w1", "a1") is None
    (listed,) = await store.list()
    assert not listed.complete


async def test_a_malformed_meta_is_corruption(
    archives: BlockingArchiveStore, store: ArchiveStore, backing: StoreFixture
) -> None:
    put(archives, "w1", "a1")
    good = backing.read("w1/a1/.meta") or b""
    for bad in (
        b"",
        b"sha256:00\n",
        good + b"x",
        good + b"\0" * (1 << 20),
        good.replace(b"bytes=5", b"bytes=-5"),
        good[:-1],
        b"\xff" * 99,
    ):
        backing.write("w1/a1/.meta", bad)
        with pytest.raises(CorruptedArchive):
            await store.find("w1", "a1")


async def test_an_object_of_another_size_is_corruption(
    archives: BlockingArchiveStore, store: ArchiveStore, backing: StoreFixture
) -> None:
    put(archives, "w1", "a1")
    backing.write("w1/a1/home.tar.zst", b"1234")
    with pytest.raises(CorruptedArchive):
        await store.find("w1", "a1")


def test_a_complete_archive_is_never_written_again(
    archives: BlockingArchiveStore, backing: StoreFixture
) -> None:
    put(archives, "w1", "a1", b"first")
    with pytest.raises(StorageProblem, match="never written again"):
        archives.upload("w1/a1/home.tar.zst", [b"other"], lambda: 1000)
    assert backing.read("w1/a1/home.tar.zst") == b"first"


def test_an_unfinished_archive_is_overwritten(archives: BlockingArchiveStore, backing: StoreFixture) -> None:
    archives.upload("w1/a1/home.tar.zst", [b"first"], lambda: 1000)
    backing.leave_unfinished("w1/a1/home.tar.zst")
    archives.upload("w1/a1/home.tar.zst", [b"second"], lambda: 1000)
    assert backing.read("w1/a1/home.tar.zst") == b"second"
    assert backing.names() == {".codehub-installation", "w1/a1/home.tar.zst"}


def test_a_stream_that_fails_leaves_no_object(archives: BlockingArchiveStore, backing: StoreFixture) -> None:
    class BrokenError(Exception):
        pass

    def chunks() -> Iterator[bytes]:
        yield b"x" * (20 << 20)
        raise BrokenError

    def is_empty_after_a_removal() -> bool:
        """A part in transit may recreate an aborted upload; a later removal ends it."""
        archives.remove("w1/a1/home.tar.zst")
        return backing.names() == {".codehub-installation"}

    with pytest.raises(BrokenError):
        archives.upload("w1/a1/home.tar.zst", chunks(), lambda: 1000)
    assert backing.read("w1/a1/home.tar.zst") is None
    if backing.is_service:
        wait_for(is_empty_after_a_removal, "the store to be empty")
    assert backing.names() == {".codehub-installation"}


async def test_a_listing_shows_complete_unfinished_and_abandoned_archives(
    archives: BlockingArchiveStore, store: ArchiveStore, backing: StoreFixture
) -> None:
    put(archives, "w1", "a1")
    archives.upload("w1/a2/home.tar.zst", [b"1234567"], lambda: 1000)
    backing.leave_unfinished("w2/a3/home.tar.zst")
    backing.write("notes.txt", b"not ours")
    listed = {archive.key: (archive.complete, archive.workspace_id) for archive in await store.list()}
    assert listed == {
        "w1/a1/home.tar.zst": (True, "w1"),
        "w1/a2/home.tar.zst": (False, "w1"),
        "w2/a3/home.tar.zst": (False, "w2"),
    }


async def test_remove_removes_everything_of_one_archive_and_nothing_else(
    archives: BlockingArchiveStore, store: ArchiveStore, backing: StoreFixture
) -> None:
    put(archives, "w1", "a1")
    kept = put(archives, "w1", "a2")
    backing.leave_unfinished("w1/a1/home.tar.zst")
    backing.leave_unfinished("w1/a3/home.tar.zst")
    await store.remove("w1/a1/home.tar.zst")
    await store.remove("w1/a1/home.tar.zst")
    assert sorted(archive.archive_op_id for archive in await store.list()) == ["a2", "a3"]
    assert not any(name.startswith("w1/a1") for name in backing.names())
    assert await store.find("w1", "a2") == kept


async def test_a_removal_that_was_cut_short_leaves_an_unfinished_archive(
    archives: BlockingArchiveStore, store: ArchiveStore, backing: StoreFixture
) -> None:
    put(archives, "w1", "a1")
    backing.remove("w1/a1/.meta")
    assert await store.find("w1", "a1") is None
    assert [archive.complete for archive in await store.list()] == [False]
    await store.remove("w1/a1/home.tar.zst")
    assert await store.list() == []


async def test_a_store_that_is_not_there_or_not_ours_is_unknown(
    archives: BlockingArchiveStore, backing: StoreFixture
) -> None:
    put(archives, "w1", "a1")
    for url, owner in [(backing.other().url, "installation-1"), (backing.url, "installation-2")]:
        store = ArchiveStore(url, owner)
        for call in (store.check(), store.find("w1", "a1"), store.list(), store.remove("w1/a1/home.tar.zst")):
            with pytest.raises(Unobservable):
                await call
    assert backing.read("w1/a1/home.tar.zst") == b"12345"


async def test_a_store_that_holds_something_is_not_claimed(backing: StoreFixture) -> None:
    backing.write("w1/a1/home.tar.zst", b"x")
    with pytest.raises(Unobservable):
        await ArchiveStore(backing.url, "installation-1").initialise()


@pytest.mark.parametrize(
    "key", ["", "w1/a1/.meta", "../w1/a1/home.tar.zst", "w1/../home.tar.zst", "w1/home.tar.zst"]
)
async def test_a_key_that_is_not_of_an_archive_is_refused(store: ArchiveStore, key: str) -> None:
    with pytest.raises(InvalidKey):
        await store.remove(key)


async def test_a_complete_archive_has_no_unfinished_upload_beside_it(
    archives: BlockingArchiveStore, backing: StoreFixture
) -> None:
    archives.upload("w1/a1/home.tar.zst", [b"12345"], lambda: 1000)
    backing.leave_unfinished("w1/a1/home.tar.zst")
    archives.commit(ArchiveFact("w1", "a1", "w1/a1/home.tar.zst", SHA, 5, 10, 1))
    assert backing.names() == {".codehub-installation", "w1/a1/home.tar.zst", "w1/a1/.meta"}
