"""A file system is flushed during the work and after it, and a failed flush is reported."""

import os
from pathlib import Path

import pytest

from codehub.host import filesystem_sync
from codehub.host.filesystem_sync import sync_filesystem, synced_filesystem
from tests.waiting import wait_for


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    paths: list[Path] = []
    monkeypatch.setattr(filesystem_sync, "_SYNC_PAUSE", 0.01)
    monkeypatch.setattr(filesystem_sync, "_sync", lambda _fd, path: paths.append(path))
    return paths


def test_a_file_system_is_flushed(tmp_path: Path) -> None:
    sync_filesystem(tmp_path)


def test_a_failed_flush_is_an_error_that_names_the_path() -> None:
    with pytest.raises(OSError, match="a name"):
        filesystem_sync._sync(-1, Path("a name"))


def test_a_file_system_is_flushed_during_the_body_and_after_it(tmp_path: Path, flushed: list[Path]) -> None:
    with synced_filesystem(tmp_path):
        wait_for(lambda: len(flushed) >= 2, "two flushes")
    count = len(flushed)
    assert count >= 3
    assert set(flushed) == {tmp_path}


def test_a_failed_flush_during_the_body_is_raised_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[int] = []

    def fail_once(descriptor: int, _path: Path) -> None:
        os.fstat(descriptor)
        failed.append(descriptor)
        if len(failed) == 1:
            raise OSError("the disk is gone")

    monkeypatch.setattr(filesystem_sync, "_SYNC_PAUSE", 0.01)
    monkeypatch.setattr(filesystem_sync, "_sync", fail_once)
    with pytest.raises(OSError, match="the disk is gone"), synced_filesystem(tmp_path):
        wait_for(lambda: failed, "the failure")
