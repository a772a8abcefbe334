"""Removal of any tree that a workspace can create."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from codehub.runtimes.process import state_directory
from codehub.runtimes.process.state_directory import remove_tree

ORDINARY_USER = 46_998
_AS_ORDINARY_USER = f"""
import os, sys
from pathlib import Path
from codehub.runtimes.process.state_directory import remove_tree
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid({ORDINARY_USER}, {ORDINARY_USER}, {ORDINARY_USER})
    os.setresuid({ORDINARY_USER}, {ORDINARY_USER}, {ORDINARY_USER})
os.chdir(sys.argv[1])
os.makedirs("top/a/b")
Path("top/a/b/file").touch()
for path in ("top/a/b", "top/a", "top"):
    os.chmod(path, 0)
remove_tree(Path("top"))
"""


def dig(top: Path, depth: int) -> None:
    """Create nested directories, with a file in each, deeper than the longest path."""
    here = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def test_a_tree_of_any_depth_is_removed(tmp_path: Path) -> None:
    top = tmp_path / "top"
    for branch, depth in (("one", 3000), ("two", 30)):
        (top / branch).mkdir(parents=True)
        dig(top / branch, depth)
    remove_tree(top)
    assert not top.exists()


def test_a_tree_with_more_names_than_one_read_returns_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_directory, "_ENTRIES_AT_ONCE", 3)
    top = tmp_path / "top"
    for path in (top, top / "a", top / "b", top / "a" / "deeper"):
        path.mkdir()
        for number in range(10):
            (path / f"file-{number}").touch()
            (path / f"directory-{number}").mkdir()
    remove_tree(top)
    assert not top.exists()


def test_the_targets_of_links_are_not_removed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    (tmp_path / "top" / "inner").mkdir(parents=True)
    (tmp_path / "top" / "link").symlink_to(kept)
    (tmp_path / "top" / "inner" / "link").symlink_to(kept / "file")
    remove_tree(tmp_path / "top")
    assert (kept / "file").exists() and not (tmp_path / "top").exists()


def test_a_link_in_place_of_the_tree_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept" / "inner").mkdir(parents=True)
    (tmp_path / "top").symlink_to(tmp_path / "kept")
    with pytest.raises(NotADirectoryError):
        remove_tree(tmp_path / "top")
    assert (tmp_path / "kept" / "inner").exists()


def test_missing_permissions_do_not_prevent_the_owner_from_removing_a_tree(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        for path in (tmp_path, *tmp_path.parents[:3]):
            path.chmod(path.stat().st_mode | 0o011)
        os.chown(tmp_path, ORDINARY_USER, ORDINARY_USER)
    subprocess.run([sys.executable, "-c", _AS_ORDINARY_USER, str(tmp_path)], check=True)
    assert list(tmp_path.iterdir()) == []
