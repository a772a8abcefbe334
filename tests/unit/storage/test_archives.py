"""Archive store in a directory, beyond the integration tests that every store passes; and `.meta`."""

from pathlib import Path

import pytest

from codehub.domain.observation import ArchiveFact
from codehub.storage.archive.archives import BlockingArchiveStore, meta_text, parse_meta
from codehub.storage.archive.async_archive_store import ArchiveStore
from codehub.storage.archive.object_store import part_size
from codehub.storage.errors import Unobservable

SHA = "ab" * 32
GIGABYTE = 1 << 30


async def test_an_upload_that_ends_during_a_listing_does_not_fail_it(tmp_path: Path) -> None:
    root = tmp_path / "the archives"
    BlockingArchiveStore(f"file://{root}", "installation-1").initialise()
    store = ArchiveStore(f"file://{str(root).replace(' ', '%20')}", "installation-1")
    (root / "w1/a1").mkdir(parents=True)
    (root / "w1/a1/home.tar.zst").write_bytes(b"12345")
    (root / "w1/a1/home.tar.zst#1").symlink_to(root / "renamed meanwhile")
    assert [item.key for item in await store.list()] == ["w1/a1/home.tar.zst"]


async def test_a_directory_that_is_missing_or_unmarked_is_unknown_and_stays_so(tmp_path: Path) -> None:
    (tmp_path / "unmarked").mkdir()
    for name in ("missing", "unmarked"):
        with pytest.raises(Unobservable):
            await ArchiveStore(f"file://{tmp_path}/{name}", "installation-1").list()
    assert not (tmp_path / "missing").exists()
    assert list((tmp_path / "unmarked").iterdir()) == []


async def test_a_service_that_does_not_answer_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with pytest.raises(Unobservable):
        await ArchiveStore("s3://bucket/prefix", "installation-1").find("w1", "a1")


def test_meta_survives_a_round_trip() -> None:
    fact = ArchiveFact("w1", "a1", "w1/a1/home.tar.zst", SHA, 5, 10, 1)
    assert parse_meta(fact.key, meta_text(fact)) == fact


@pytest.mark.parametrize("size", [0, 1, 10 * GIGABYTE, 100 * GIGABYTE, 5000 * GIGABYTE])
def test_an_archive_of_any_size_fits_into_the_parts_that_a_service_takes(size: int) -> None:
    part = part_size(size)
    assert 5 << 20 <= part <= 5 * GIGABYTE
    assert size <= part * 10_000
