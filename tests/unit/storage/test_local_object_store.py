"""Object store in a directory: missing and unfinished objects, and a missing store."""

from pathlib import Path

import pytest

from codehub.storage.archive.local_object_store import LocalObjectStore
from codehub.storage.archive.object_store import SMALL_BYTES
from codehub.storage.errors import StoreTrouble

KEY = "w1/a1/home.tar.zst"


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    (tmp_path / "store").mkdir()
    return LocalObjectStore(tmp_path / "store")


def test_what_was_written_is_read_listed_and_removed(store: LocalObjectStore) -> None:
    content = bytes(range(256)) * 100_000
    store.upload(KEY, [content[:1000], content[1000:]], lambda: 0)
    assert store.size(KEY) == len(content)
    assert store.read(KEY) == content[:SMALL_BYTES]
    assert b"".join(store.stream(KEY, len(content))) == content
    assert [(item.path, item.size) for item in store.list()] == [(KEY, len(content))]
    store.remove(KEY)
    store.remove(KEY)
    assert (store.read(KEY), store.size(KEY), store.list()) == (None, None, [])


def test_an_unfinished_upload_is_listed_but_is_not_an_object(store: LocalObjectStore, tmp_path: Path) -> None:
    (tmp_path / "store/w1/a1").mkdir(parents=True)
    (tmp_path / "store" / f"{KEY}#1").write_bytes(b"half")
    assert [item.path for item in store.list()] == [f"{KEY}#1"]
    assert store.size(KEY) is None
    store.remove_unfinished(KEY)
    assert list((tmp_path / "store").iterdir()) == []


def test_an_object_that_is_shorter_than_expected_fails_the_read(store: LocalObjectStore) -> None:
    store.write(KEY, b"short")
    with pytest.raises(StoreTrouble, match="fewer bytes than requested"):
        list(store.stream(KEY, 10))


def test_a_directory_with_an_objects_name_is_not_an_object(store: LocalObjectStore, tmp_path: Path) -> None:
    (tmp_path / "store" / KEY).mkdir(parents=True)
    assert store.size(KEY) is None


def test_a_store_that_is_gone_is_not_an_empty_one(store: LocalObjectStore, tmp_path: Path) -> None:
    (tmp_path / "store").rmdir()
    with pytest.raises(StoreTrouble, match="failed"):
        store.list()
