"""A home that has changed since it was archived is not removed."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from codehub.domain.observation import JobState, VolumeFact
from codehub.storage.errors import HomeChanged
from codehub.storage.volumes.changed_home import check_unchanged
from tests.integration.storage.conftest import FIRST, KEY, StorageFixture
from tests.selection import sample
from tests.trees import tree_hash


def _write_in_place(home: Path) -> None:
    """Write a file without changing its size or mtime."""
    file = home / "left" / "file"
    before = file.stat()
    with file.open("r+b") as open_file:
        open_file.write(b"new")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], object]] = {
    "written": _write_in_place,
    "made": lambda home: (home / "left" / "another").touch(),
    "removed": lambda home: (home / "left" / "file").unlink(),
    "renamed": lambda home: (home / "left" / "file").rename(home / "left" / "other"),
    "another mode": lambda home: (home / "left" / "file").chmod(0o700),
    "another attribute": lambda home: os.setxattr(home / "left" / "file", "user.colour", b"red"),
    "the home itself": lambda home: home.chmod(0o711),
}


@pytest.fixture
async def archived_since(storage: StorageFixture) -> float:
    """Make a home and its archive; return when the archive operation began."""
    await storage.make_home(files=4)
    (storage.home / "left").mkdir()
    (storage.home / "left" / "file").write_bytes(b"old")
    began = time.time()
    await storage.done("archive", storage.archive_job())
    return began


@pytest.mark.parametrize("change", sample(list(CHANGES), 3, "changes of a home"))
async def test_a_change_since_the_archive_was_begun_keeps_the_home(
    storage: StorageFixture, archived_since: float, change: str
) -> None:
    CHANGES[change](storage.home)
    before = tree_hash(storage.home)
    fact = await storage.run("delete", storage.delete_job(unchanged_since=archived_since))
    assert (fact.state, fact.outdated) == (JobState.FAILED, True), fact
    assert "has changed since it was archived" in fact.message
    assert await storage.volumes.status(KEY) == VolumeFact(FIRST)
    assert tree_hash(storage.home) == before


async def test_a_home_that_was_only_read_is_removed(storage: StorageFixture, archived_since: float) -> None:
    assert tree_hash(storage.home)
    await storage.done("delete", storage.delete_job(unchanged_since=archived_since))
    assert await storage.volumes.status(KEY) is None


async def test_a_change_before_the_clock_was_set_back_does_not_count(
    storage: StorageFixture, archived_since: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: archived_since - 60)
    check_unchanged(storage.home, archived_since - 120, [])
    monkeypatch.setattr("time.time", lambda: archived_since + 60)
    with pytest.raises(HomeChanged):
        check_unchanged(storage.home, archived_since - 120, [])


async def test_a_home_that_cannot_be_read_stays(storage: StorageFixture, archived_since: float) -> None:
    """A number that `find` rejects stands for any failure of `find`."""
    fact = await storage.run("delete", storage.delete_job(unchanged_since=float("nan")))
    assert (fact.state, fact.outdated) == (JobState.FAILED, False)
    assert "cannot be compared with its archive" in fact.message
    assert storage.home.is_dir()
