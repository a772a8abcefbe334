"""A file with its final name is complete and flushed, and so is its directory."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from codehub.host.durable_files import (
    create_durably,
    fsync_path,
    make_directory,
    read_if_there,
    write_durably,
    write_stream,
)


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the flushed files at the moment of their flush."""
    names: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        names.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return names


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "directory").mkdir()
    return tmp_path / "directory" / "file"


def test_a_file_is_flushed_before_it_gets_its_name_and_its_directory_after_that(
    path: Path, flushed: list[str]
) -> None:
    write_durably(path, b"content")
    assert path.read_bytes() == b"content"
    assert flushed == ["file.tmp", "directory"]


def test_of_two_creators_one_wins(path: Path, flushed: list[str]) -> None:
    assert create_durably(path, b"first")
    assert flushed[1:] == ["directory"]
    assert not create_durably(path, b"second")
    assert path.read_bytes() == b"first"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_a_stream_becomes_a_file_at_its_end(path: Path, flushed: list[str]) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(3):
            assert not path.exists()
            yield b"x" * (9 << 20)

    write_stream(path, chunks())
    assert path.stat().st_size == 27 << 20
    assert flushed == ["file#1"]


def test_a_stream_that_fails_leaves_nothing(path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"x"
        raise ConnectionError

    with pytest.raises(ConnectionError):
        write_stream(path, chunks())
    assert list(path.parent.iterdir()) == []


def test_missing_directories_are_made_with_their_permissions(tmp_path: Path, flushed: list[str]) -> None:
    before = os.umask(0o077)
    try:
        make_directory(tmp_path / "a" / "b", 0o711)
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b")] == [0o711, 0o711]
    assert flushed == [tmp_path.name, "a"]


def test_a_directory_behind_a_symbolic_link_is_flushed_only_on_request(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    fsync_path(tmp_path / "link", follow_symlinks=True)
    with pytest.raises(OSError, match="symbolic links"):
        fsync_path(tmp_path / "link")


def test_a_missing_file_reads_as_none(path: Path) -> None:
    assert read_if_there(path) is None
    path.write_bytes(b"content")
    assert read_if_there(path) == b"content"
