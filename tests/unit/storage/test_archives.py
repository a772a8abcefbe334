"""The archive store: complete means object and .meta; unknown is not gone."""

from pathlib import Path

import pytest

from codehub.domain.observation import ArchiveFact
from codehub.storage.archives import Archives, ArchiveStore, archive_key, meta_text, parse_meta
from codehub.storage.errors import CorruptedArchive, InvalidKey, StorageProblem, Unobservable

SHA = "ab" * 32


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "the archives"


@pytest.fixture
def archives(root: Path) -> Archives:
    archives = Archives(f"file://{root}", "installation-1")
    archives.initialise()
    return archives


@pytest.fixture
def store(archives: Archives, root: Path) -> ArchiveStore:
    return ArchiveStore(f"file://{str(root).replace(' ', '%20')}", "installation-1")


def put(archives: Archives, workspace_id: str, archive_op_id: str, content: bytes = b"12345") -> ArchiveFact:
    key = archive_key(workspace_id, archive_op_id)
    archives.upload(key, [content], 1000)
    fact = ArchiveFact(workspace_id, archive_op_id, key, SHA, len(content), 10, 1)
    archives.commit(fact)
    return fact


async def test_an_archive_is_found_once_object_and_meta_are_there(
    archives: Archives, store: ArchiveStore
) -> None:
    assert await store.find("w1", "a1") is None
    archives.upload("w1/a1/home.tar.zst", [b"12", b"345"], 1000)
    assert await store.find("w1", "a1") is None
    fact = ArchiveFact("w1", "a1", "w1/a1/home.tar.zst", SHA, 5, 10, 1)
    archives.commit(fact)
    assert await store.find("w1", "a1") == fact
    assert await store.find("w1", "a2") is None


async def test_meta_is_the_text_that_is_specified(archives: Archives, root: Path) -> None:
    put(archives, "w1", "a1")
    assert (root / "w1/a1/.meta").read_text() == f"sha256:{SHA}\nbytes=5 unpacked=10 entries=1\n"


async def test_a_meta_without_its_object_is_not_an_archive(
    archives: Archives, store: ArchiveStore, root: Path
) -> None:
    put(archives, "w1", "a1")
    (root / "w1/a1/home.tar.zst").unlink()
    assert await store.find("w1", "a1") is None
    (listed,) = await store.list()
    assert not listed.complete


async def test_a_malformed_meta_is_corruption(archives: Archives, store: ArchiveStore, root: Path) -> None:
    put(archives, "w1", "a1")
    good = (root / "w1/a1/.meta").read_bytes()
    for bad in (
        b"",
        b"sha256:00\n",
        good + b"x",
        good.replace(b"bytes=5", b"bytes=-5"),
        good[:-1],
        b"\xff" * 99,
    ):
        (root / "w1/a1/.meta").write_bytes(bad)
        with pytest.raises(CorruptedArchive):
            await store.find("w1", "a1")


async def test_an_object_of_another_size_is_corruption(
    archives: Archives, store: ArchiveStore, root: Path
) -> None:
    put(archives, "w1", "a1")
    (root / "w1/a1/home.tar.zst").write_bytes(b"1234")
    with pytest.raises(CorruptedArchive):
        await store.find("w1", "a1")


def test_a_complete_archive_is_never_written_again(archives: Archives, root: Path) -> None:
    put(archives, "w1", "a1", b"first")
    with pytest.raises(StorageProblem, match="never written again"):
        archives.upload("w1/a1/home.tar.zst", [b"other"], 1000)
    assert (root / "w1/a1/home.tar.zst").read_bytes() == b"first"


def test_an_unfinished_archive_is_overwritten(archives: Archives, root: Path) -> None:
    archives.upload("w1/a1/home.tar.zst", [b"first"], 1000)
    archives.upload("w1/a1/home.tar.zst", [b"second"], 1000)
    assert (root / "w1/a1/home.tar.zst").read_bytes() == b"second"


def test_a_stream_that_fails_leaves_no_object(archives: Archives, root: Path) -> None:
    class BrokenError(Exception):
        pass

    def chunks() -> object:
        yield b"x" * (20 << 20)
        raise BrokenError

    with pytest.raises(BrokenError):
        archives.upload("w1/a1/home.tar.zst", chunks(), 1000)  # type: ignore[arg-type]
    assert not (root / "w1/a1/home.tar.zst").exists()
    assert archives.list() == []


async def test_a_listing_shows_complete_unfinished_and_abandoned_archives(
    archives: Archives, store: ArchiveStore, root: Path
) -> None:
    put(archives, "w1", "a1")
    archives.upload("w1/a2/home.tar.zst", [b"1234567"], 1000)
    (root / "w2/a3").mkdir(parents=True)
    (root / "w2/a3/home.tar.zst#1").write_bytes(b"killed")
    (root / "notes.txt").write_text("not ours")
    listed = {archive.key: (archive.complete, archive.workspace_id) for archive in await store.list()}
    assert listed == {
        "w1/a1/home.tar.zst": (True, "w1"),
        "w1/a2/home.tar.zst": (False, "w1"),
        "w2/a3/home.tar.zst": (False, "w2"),
    }


async def test_an_upload_that_ends_while_the_store_is_listed_is_no_trouble(
    archives: Archives, store: ArchiveStore, root: Path
) -> None:
    put(archives, "w1", "a1")
    (root / "w1/a1/home.tar.zst#1").symlink_to(root / "renamed meanwhile")
    assert [item.key for item in await store.list()] == ["w1/a1/home.tar.zst"]


async def test_removing_takes_everything_of_one_archive_and_nothing_else(
    archives: Archives, store: ArchiveStore, root: Path
) -> None:
    put(archives, "w1", "a1")
    kept = put(archives, "w1", "a2")
    (root / "w1/a1/home.tar.zst#1").write_bytes(b"killed")
    await store.remove("w1/a1/home.tar.zst")
    await store.remove("w1/a1/home.tar.zst")
    assert not (root / "w1/a1").exists()
    assert await store.find("w1", "a2") == kept


async def test_a_removal_that_was_cut_short_leaves_an_unfinished_archive(
    archives: Archives, store: ArchiveStore, root: Path
) -> None:
    put(archives, "w1", "a1")
    (root / "w1/a1/.meta").unlink()
    assert await store.find("w1", "a1") is None
    assert [archive.complete for archive in await store.list()] == [False]
    await store.remove("w1/a1/home.tar.zst")
    assert await store.list() == []


async def test_a_store_that_is_not_there_or_not_ours_is_unknown(
    archives: Archives, root: Path, tmp_path: Path
) -> None:
    put(archives, "w1", "a1")
    (tmp_path / "unmarked").mkdir()
    for url, owner in [
        (f"file://{tmp_path}/missing", "installation-1"),
        (f"file://{tmp_path}/unmarked", "installation-1"),
        (f"file://{root}", "installation-2"),
    ]:
        store = ArchiveStore(url, owner)
        for call in (store.check(), store.find("w1", "a1"), store.list(), store.remove("w1/a1/home.tar.zst")):
            with pytest.raises(Unobservable):
                await call
    assert (root / "w1/a1/home.tar.zst").exists()
    assert not (tmp_path / "missing").exists()


async def test_a_store_that_holds_something_is_not_claimed(tmp_path: Path) -> None:
    (tmp_path / "w1/a1").mkdir(parents=True)
    (tmp_path / "w1/a1/home.tar.zst").write_bytes(b"x")
    with pytest.raises(Unobservable):
        await ArchiveStore(f"file://{tmp_path}", "installation-1").initialise()


async def test_a_service_that_does_not_answer_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with pytest.raises(Unobservable):
        await ArchiveStore("s3://bucket/prefix", "installation-1").find("w1", "a1")


@pytest.mark.parametrize(
    "key", ["", "w1/a1/.meta", "../w1/a1/home.tar.zst", "w1/../home.tar.zst", "w1/home.tar.zst"]
)
async def test_a_key_that_is_not_of_an_archive_is_refused(store: ArchiveStore, key: str) -> None:
    with pytest.raises(InvalidKey):
        await store.remove(key)


def test_meta_survives_a_round_trip() -> None:
    fact = ArchiveFact("w1", "a1", "w1/a1/home.tar.zst", SHA, 5, 10, 1)
    assert parse_meta(fact.key, meta_text(fact)) == fact
