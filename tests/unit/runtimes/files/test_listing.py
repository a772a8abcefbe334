"""Lists and searches through the file agent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from codehub.runtimes.files import listing
from codehub.runtimes.files.client import FileSession
from codehub.runtimes.files.protocol import (
    FileCode,
    FileKind,
    FileRefused,
    ListRequest,
    SearchRequest,
)
from tests.file_agents import file_session


async def paths(session: FileSession, *arguments: object) -> list[bytes]:
    return [entry.path for entry in (await session.list(ListRequest(*arguments))).entries]  # type: ignore[arg-type]


async def found(session: FileSession, query: bytes, **fields: object) -> list[tuple[bytes, int, bytes]]:
    request = SearchRequest(**{"path": b"", "query": query, "contents": True, **fields})  # type: ignore[arg-type]
    matches = (await session.search(request)).matches
    return sorted((match.path, match.line, match.text) for match in matches)


async def test_facts_and_entries_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "file").chmod(0o640)
    os.utime(tmp_path / "file", ns=(5, 1_234_567_890_123_456_789))
    (tmp_path / "link").symlink_to("/nowhere\udcff")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    Path(os.fsdecode(bytes(tmp_path) + b"/bad\xff%")).touch()
    async with file_session(tmp_path) as session:
        listed = await session.list(ListRequest(b""))
        assert (listed.facts.kind, listed.truncated) == (FileKind.DIRECTORY, False)
        bad, directory, fifo, file, link = listed.entries
        assert bad.path == b"bad\xff%"
        assert (directory.kind, fifo.kind) == (FileKind.DIRECTORY, FileKind.OTHER)
        assert (file.kind, file.size, file.mode) == (FileKind.FILE, 5, 0o640)
        assert file.mtime_ns == 1_234_567_890_123_456_789
        assert (link.kind, link.target) == (FileKind.SYMLINK, b"/nowhere\xff")
        only = await session.list(ListRequest(b"file"))
        assert (only.facts.etag, only.facts.path, only.entries) == (file.etag, b"", [])
        with pytest.raises(FileRefused) as refusal:
            await session.list(ListRequest(b"missing"))
        assert refusal.value.code is FileCode.NOT_FOUND


async def test_depth_and_limit_bound_a_list(tmp_path: Path) -> None:
    for name in ("a/b/c/d", "a/e", "f"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    async with file_session(tmp_path) as session:
        assert await paths(session, b"", 0) == []
        assert await paths(session, b"", 1) == [b"a", b"f"]
        assert await paths(session, b"", 2) == [b"a", b"a/b", b"a/e", b"f"]
        assert await paths(session, b"a/b", 9) == [b"c", b"c/d"]
        assert await paths(session, b"", 9, 3) == [b"a", b"a/b", b"a/b/c"]
        assert (await session.list(ListRequest(b"", 9, 3))).truncated
        assert not (await session.list(ListRequest(b"", 9, 6))).truncated


async def test_a_list_enters_links_only_where_the_path_does(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory/file").touch()
    (tmp_path / "link").symlink_to("directory")
    (tmp_path / "circle").symlink_to(".")
    async with file_session(tmp_path) as session:
        assert await paths(session, b"", 5) == [b"circle", b"directory", b"directory/file", b"link"]
        listed = await session.list(ListRequest(b"link"))
        assert listed.facts.kind is FileKind.SYMLINK
        assert [entry.path for entry in listed.entries] == [b"file"]
        assert b"proc" in await paths(session, b"/")
        with pytest.raises(FileRefused, match="/proc is not offered"):
            await session.list(ListRequest(b"/proc"))


async def test_a_list_of_many_entries_is_cut_and_sorted(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / f"{number:05}{'x' * 200}").touch()
    async with file_session(tmp_path) as session:
        listed = await session.list(ListRequest(b"", 1, 700))
    assert listed.truncated
    assert [int(entry.path[:5]) for entry in listed.entries] == list(range(700))


async def test_the_longest_paths_and_targets_are_listed(tmp_path: Path) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    for _ in range(20):
        os.mkdir(b"\xff" * 255, dir_fd=directory)
        below = os.open(b"\xff" * 255, os.O_RDONLY, dir_fd=directory)
        os.symlink(b"\xfe" * 4000, b"link", dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(directory)
    async with file_session(tmp_path) as session:
        listed = await session.list(ListRequest(b"", 32, 10_000))
        assert listed.truncated
        assert max(len(entry.path) for entry in listed.entries) > 3000


async def test_search_by_names_ignores_case(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/ReadMe.md").write_text("x")
    async with file_session(tmp_path) as session:
        assert await found(session, b"readme", contents=False) == [(b"src/ReadMe.md", 0, b"")]
        assert await found(session, b"README", contents=False, path=b"src") == [(b"ReadMe.md", 0, b"")]
        assert await found(session, b"nothing", contents=False) == []


async def test_search_in_contents_gives_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\ntwo needle needle\nthree\nneedle four\n")
    (tmp_path / "long").write_bytes(b"x" * 5000 + b"needle" + b"y" * 5000)
    (tmp_path / "binary").write_bytes(b"\0needle")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("a.txt")
    async with file_session(tmp_path) as session:
        matches = await found(session, b"needle")
    assert matches[:2] == [(b"a.txt", 2, b"two needle needle"), (b"a.txt", 4, b"needle four")]
    path, line, text = matches[2]
    assert (path, line, len(text)) == (b"long", 1, 300)
    assert b"needle" in text and len(matches) == 3


async def test_a_search_is_bounded_in_results_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        (tmp_path / f"match{number}").touch()
    async with file_session(tmp_path) as session:
        result = await session.search(SearchRequest(b"", b"match", contents=False, limit=10))
        assert (len(result.matches), result.truncated) == (10, True)
        exact = await session.search(SearchRequest(b"", b"match", contents=False, limit=50))
        assert (len(exact.matches), exact.truncated) == (50, False)
        monkeypatch.setattr(listing, "SEARCH_SECONDS", -1.0)
        result = await session.search(SearchRequest(b"", b"match", contents=False, limit=50))
        assert len(result.matches) < 50 and result.truncated


async def test_directories_that_cannot_be_searched_are_not_silent(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(40):
        deep = deep / "d"
        deep.mkdir()
    async with file_session(tmp_path) as session:
        result = await session.search(SearchRequest(b"", b"nothing", contents=False))
    assert result.truncated
