"""A file is replaced in one step or not at all."""

import os
from pathlib import Path

import pytest

from codehub.host.atomic_files import replace_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir())


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_made_and_replaced(path: Path, durable: bool) -> None:
    for content in (b"first", b"second"):
        replace_file(path, content, durable=durable)
        assert path.read_bytes() == content
    assert path.stat().st_mode & 0o777 == 0o600
    assert names(path) == ["file"]


def test_a_reader_of_the_old_content_keeps_it(path: Path) -> None:
    replace_file(path, b"old")
    with path.open("rb") as reader:
        replace_file(path, b"new")
        assert reader.read() == b"old"


def test_permissions_and_group_are_set_whatever_the_umask(path: Path) -> None:
    before = os.umask(0o077)
    try:
        replace_file(path, b"", mode=0o640, group=os.getegid())
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640
    assert path.stat().st_gid == os.getegid()


def test_the_staged_file_of_a_killed_writer_is_overwritten(path: Path) -> None:
    staged = path.with_name("other.new")
    staged.write_bytes(b"half of something longer")
    replace_file(path, b"whole", staged=staged)
    assert path.read_bytes() == b"whole"
    assert names(path) == ["file"]


def test_a_symbolic_link_in_place_of_the_staged_file_is_not_followed(path: Path) -> None:
    victim = path.with_name("victim")
    victim.write_bytes(b"kept")
    path.with_name("file.tmp").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        replace_file(path, b"content")
    assert victim.read_bytes() == b"kept"


def test_a_failure_leaves_the_old_file_and_no_staged_one(path: Path) -> None:
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(path, b"content")
    assert names(path) == ["file"]
