"""Files through the SDK, on a whole system."""

import os
from pathlib import Path
from typing import Any

import pytest

from codehub.client import Conflict, FileChanged, NotFound, PreconditionFailed
from tests.integration.client.conftest import Sdk
from tests.integration.client.test_commands import kill

LARGE = 24 << 20


def test_files_are_read_written_listed_moved_and_deleted(workspace: Any) -> None:
    files = workspace.files
    written = files.write("a.txt", "grüße\n", mode="640")
    assert (written.size, written.mode) == (8, "0640")
    assert files.read("a.txt") == "grüße\n".encode()
    with pytest.raises(PreconditionFailed):
        files.write("a.txt", b"other", new=True)
    with pytest.raises(PreconditionFailed):
        files.write("a.txt", b"other", if_match='"no"')
    files.write("a.txt", b"", if_match=written.etag)
    assert files.read("a.txt") == b""

    files.make_directory("d/e", parents=True)
    moved = files.move("a.txt", "d/e/b.txt")
    assert moved.path == "d/e/b.txt"
    listed = files.list("d", depth=2)
    assert [(each.path, each.kind) for each in listed.entries] == [("e", "directory"), ("e/b.txt", "file")]
    assert not listed.truncated
    files.write("d/e/b.txt", b"one\nfind me\n")
    assert [each.path for each in files.search("B.T").matches] == ["d/e/b.txt"]
    [match] = files.search("find", "d", contents=True).matches
    assert (match.path, match.line, match.text) == ("e/b.txt", 2, "find me")
    with pytest.raises(Conflict):
        files.delete("d")
    files.delete("d", recursive=True)
    with pytest.raises(NotFound):
        files.stat("d")


def test_a_name_that_is_not_utf8_makes_the_round_trip(workspace: Any) -> None:
    name = os.fsdecode(b"caf\xe9 100%")
    workspace.files.write(name, b"x")
    [entry] = [each for each in workspace.files.list().entries if each.encoded]
    assert entry.plain_path == name
    assert workspace.files.read(entry.plain_path) == b"x"


def test_trees_are_copied_both_ways(workspace: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub" / "empty").mkdir(parents=True)
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "sub" / "data").write_bytes(os.urandom(300_000))
    (source / "link").symlink_to("sub/data")
    os.mkfifo(source / "fifo")
    seen: list[tuple[int, int | None]] = []
    workspace.files.upload(source, "project", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] >= 300_000 and seen[-1][1] == 300_010
    listed = {each.path: each for each in workspace.files.list("project", depth=3).entries}
    assert set(listed) == {"run.sh", "sub", "sub/data", "sub/empty", "link"}
    assert (listed["run.sh"].mode, listed["link"].target) == ("0755", "sub/data")

    target = workspace.files.download("project", tmp_path / "target")
    assert (target / "sub" / "data").read_bytes() == (source / "sub" / "data").read_bytes()
    assert os.access(target / "run.sh", os.X_OK)
    assert os.readlink(target / "link") == "sub/data"
    assert (target / "sub" / "empty").is_dir()

    one = workspace.files.download("project/link", tmp_path)
    assert one == tmp_path / "link" and one.stat().st_size == 300_000 and not one.is_symlink()
    workspace.files.upload(one, "project/sub")
    assert workspace.files.stat("project/sub/link").size == 300_000


@pytest.mark.sampled(1, "test_transfers")
@pytest.mark.parametrize("part", ["access", "gateway"])
def test_transfers_survive_the_death_of_a_part(sdk: Sdk, workspace: Any, tmp_path: Path, part: str) -> None:
    source = tmp_path / "large"
    source.write_bytes(os.urandom(LARGE))
    killed: list[int] = []

    def kill_once(done: int, _total: int | None) -> None:
        if not killed and done > LARGE // 8:
            killed.append(done)
            kill(sdk, (part,))

    workspace.files.upload(source, "large", progress=kill_once)
    assert killed and workspace.files.stat("large").size == LARGE
    killed.clear()
    target = workspace.files.download("large", tmp_path / "copy", progress=kill_once)
    assert killed and killed[0] < LARGE
    assert target.read_bytes() == source.read_bytes()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["copy", "large"]

    (tmp_path / "tree").mkdir()
    source.rename(tmp_path / "tree" / "large")
    killed.clear()
    workspace.files.upload(tmp_path / "tree", "tree", progress=kill_once)
    assert killed
    killed.clear()
    workspace.files.download("tree", tmp_path / "back", progress=kill_once)
    assert killed
    assert (tmp_path / "back" / "large").read_bytes() == target.read_bytes()


@pytest.mark.parametrize("sdk", ["sync"], indirect=True)
def test_a_file_that_changes_under_a_broken_download_is_not_mixed(
    sdk: Sdk, workspace: Any, tmp_path: Path
) -> None:
    """The callback blocks, which a running event loop does not allow."""
    workspace.run(f"head -c {LARGE} /dev/zero > changing")
    changed: list[int] = []

    def change(done: int, _total: int | None) -> None:
        if not changed:
            changed.append(done)
            workspace.files.write("changing", b"new")
            kill(sdk, ("gateway",))

    with pytest.raises(FileChanged):
        workspace.files.download("changing", tmp_path / "copy", progress=change)
    assert list(tmp_path.iterdir()) == []
