"""Deletes, moves and new directories through the file agent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from codehub.runtimes.files.client import FileSession
from codehub.runtimes.files.protocol import (
    DeleteRequest,
    DirectoryRequest,
    FileCode,
    FileKind,
    FileRefused,
    MoveRequest,
)
from tests.file_agents import file_session


async def refusal(session: FileSession, request: DeleteRequest | MoveRequest | DirectoryRequest) -> FileCode:
    with pytest.raises(FileRefused) as refused:
        match request:
            case DeleteRequest():
                await session.delete(request)
            case MoveRequest():
                await session.move(request)
            case DirectoryRequest():
                await session.make_directory(request)
    return refused.value.code


async def test_a_delete_removes_the_link_and_not_its_target(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").touch()
    (tmp_path / "link").symlink_to("kept")
    async with file_session(tmp_path) as session:
        await session.delete(DeleteRequest(b"link", recursive=True))
    assert os.listdir(tmp_path) == ["kept"]


async def test_a_directory_is_only_deleted_with_its_content_on_request(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a/b/c").mkdir(parents=True)
    (tree / "a/empty").mkdir()
    for name in ("file", "a/file", "a/b/c/file"):
        (tree / name).touch()
    os.mkfifo(tree / "fifo")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    (tree / "a/link").symlink_to(outside)
    async with file_session(tmp_path) as session:
        assert await refusal(session, DeleteRequest(b"tree")) is FileCode.NOT_EMPTY
        await session.delete(DeleteRequest(b"tree", recursive=True))
        assert await refusal(session, DeleteRequest(b"tree")) is FileCode.NOT_FOUND
        await session.delete(DeleteRequest(b"outside/file"))
        await session.delete(DeleteRequest(b"outside"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("recursive", [True, False])
async def test_the_home_and_what_holds_it_are_not_deleted_by_any_name(
    tmp_path: Path, recursive: bool
) -> None:
    home = tmp_path / "above/home"
    home.mkdir(parents=True)
    (home / "file").touch()
    (tmp_path / "link").symlink_to("above")
    async with file_session(home) as session:
        for path in (home, tmp_path / "above", tmp_path / "link/home", "../home", "../../above"):
            request = DeleteRequest(os.fsencode(path), recursive=recursive)
            assert await refusal(session, request) is FileCode.INVALID
            assert await refusal(session, MoveRequest(request.path, b"x")) is FileCode.INVALID
    assert os.listdir(home) == ["file"]


async def test_a_delete_can_require_an_etag(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    async with file_session(tmp_path) as session:
        etag = (await session.open(b"file")).etag
        assert await refusal(session, DeleteRequest(b"file", if_match=["old"])) is FileCode.CHANGED
        await session.delete(DeleteRequest(b"file", if_match=[etag]))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("path", [b"", b".", b"/", b"..", b"a/.."])
async def test_the_home_itself_and_the_root_stay(tmp_path: Path, path: bytes) -> None:
    (tmp_path / "a").mkdir()
    async with file_session(tmp_path) as session:
        assert await refusal(session, DeleteRequest(path, recursive=True)) is FileCode.INVALID
        assert await refusal(session, MoveRequest(path, b"x")) is FileCode.INVALID
        assert await refusal(session, MoveRequest(b"a", path, overwrite=True)) is FileCode.INVALID
    assert os.listdir(tmp_path) == ["a"]


async def test_a_move_replaces_nothing_unless_asked(tmp_path: Path) -> None:
    (tmp_path / "from").write_text("new")
    (tmp_path / "to").write_text("old")
    (tmp_path / "directory").mkdir()
    async with file_session(tmp_path) as session:
        assert await refusal(session, MoveRequest(b"from", b"to")) is FileCode.EXISTS
        assert (tmp_path / "to").read_text() == "old"
        moved = await session.move(MoveRequest(b"from", b"to", overwrite=True))
        assert (moved.kind, moved.size) == (FileKind.FILE, 3)
        await session.move(MoveRequest(b"to", b"directory/to"))
        assert await refusal(session, MoveRequest(b"missing", b"x")) is FileCode.NOT_FOUND
        assert await refusal(session, MoveRequest(b"directory", b"directory/x")) is FileCode.INVALID
    assert (tmp_path / "directory/to").read_text() == "new"


async def test_new_directories(tmp_path: Path) -> None:
    async with file_session(tmp_path) as session:
        assert await refusal(session, DirectoryRequest(b"a/b")) is FileCode.NOT_FOUND
        made = await session.make_directory(DirectoryRequest(b"a/b/c", parents=True, mode=0o711))
        assert (made.created, made.facts.mode) == (True, 0o711)
        assert not (await session.make_directory(DirectoryRequest(b"a/b/c", parents=True))).created
        assert await refusal(session, DirectoryRequest(b"a/b/c")) is FileCode.EXISTS
        (tmp_path / "file").touch()
        assert await refusal(session, DirectoryRequest(b"file", parents=True)) is FileCode.EXISTS
        assert await refusal(session, DirectoryRequest(b"file/a", parents=True)) is FileCode.NOT_A_DIRECTORY
