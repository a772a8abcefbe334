"""The size of a home: what counts, what does not, and where the walk ends."""

import os
from pathlib import Path

import pytest

from codehub.storage.volumes.home_size import WalkLimits, measure

KIB = 1024


def allocated(*paths: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in paths)


def test_the_size_of_a_home_is_its_allocated_space(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "deep").mkdir()
    (tmp_path / "a" / "deep" / "file").write_bytes(bytes(400 * KIB))
    (tmp_path / "plain").write_bytes(bytes(40 * KIB))
    os.link(tmp_path / "plain", tmp_path / "a" / "again")
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1 << 30)
    found = measure(tmp_path)
    counted = [tmp_path, tmp_path / "a", tmp_path / "a/deep", tmp_path / "a/deep/file", tmp_path / "plain"]
    assert found.bytes == allocated(*counted)
    assert (found.entries, found.complete) == (6, True)
    assert found.largest[0].name == "a/deep"
    assert {entry.name for entry in found.largest} >= {"a/deep", "sparse"}


def test_nothing_outside_of_the_home_is_measured(tmp_path: Path) -> None:
    home, outside = tmp_path / "home", tmp_path / "outside"
    home.mkdir()
    outside.mkdir()
    (outside / "secret").write_bytes(bytes(1 << 20))
    (home / "link").symlink_to(outside)
    found = measure(home)
    assert found.bytes < 64 * KIB
    assert [entry.name for entry in found.largest] == ["link"]
    (tmp_path / "as-home").symlink_to(outside)
    with pytest.raises(OSError):
        measure(tmp_path / "as-home")


def test_a_walk_that_reaches_its_limits_is_reported_as_incomplete(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number}").write_bytes(bytes(8 * KIB))
    some = measure(tmp_path, WalkLimits(entries=5))
    assert (some.entries, some.complete) == (5, False)
    assert not measure(tmp_path, WalkLimits(seconds=-1.0)).complete
    deep = tmp_path / "deep"
    for _ in range(150):
        deep = deep / "d"
    deep.mkdir(parents=True)
    assert not measure(tmp_path).complete


def test_any_name_can_be_shown(tmp_path: Path) -> None:
    (tmp_path / "control\x1b[31m\n").write_bytes(bytes(64 * KIB))
    os.mkdir(os.fsencode(tmp_path) + b"/\xff\xfe")
    (tmp_path / ("x" * 200)).write_bytes(bytes(8 * KIB))
    names = [entry.name for entry in measure(tmp_path).largest]
    assert names[0] == "control\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}"
    assert all(len(name) <= 80 and name.isprintable() for name in names)
