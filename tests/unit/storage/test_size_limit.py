"""The size of the parts follows the home's size, not the disk's."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from codehub.storage.archive.object_store import part_size
from codehub.storage.archive.size_limit import size_limit

GIGABYTE = 1 << 30


def disk_of(used: int) -> SimpleNamespace:
    return SimpleNamespace(f_blocks=2 * used, f_bfree=used, f_frsize=1)


@pytest.mark.parametrize("used", [1, 5 * GIGABYTE, 900 * GIGABYTE])
def test_a_small_home_has_small_parts_whatever_its_disk_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used: int
) -> None:
    (tmp_path / "file").write_bytes(bytes(1000))
    monkeypatch.setattr(os, "statvfs", lambda path: disk_of(used))
    assert part_size(size_limit(tmp_path, [])) == part_size(0)


def test_a_large_home_has_parts_that_are_large_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "du").open("w") as script:
        script.write(f"#!/bin/sh\necho {800 * GIGABYTE} home\n")
    (tmp_path / "du").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(os, "statvfs", lambda path: disk_of(900 * GIGABYTE))
    limit = size_limit(tmp_path, [])
    assert 800 * GIGABYTE < limit <= 900 * GIGABYTE
    assert part_size(limit) * 10_000 > limit


def test_a_home_that_cannot_be_measured_is_as_large_as_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: disk_of(900 * GIGABYTE))
    assert size_limit(tmp_path / "missing", []) == 900 * GIGABYTE
