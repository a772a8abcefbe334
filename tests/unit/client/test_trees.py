"""Archives of directories: nothing leads out of the directory that they are unpacked into."""

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from codehub.client import UnexpectedAnswer
from codehub.client.local_files import file_pieces
from codehub.client.trees import tar_pieces, tree_size, unpack


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for member, data in members:
            tar.addfile(member, io.BytesIO(data))
    made.seek(0)
    return made


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size, made.mode = kind, link, size, 0o644
    return made


def file(name: str, data: bytes = b"evil") -> tuple[tarfile.TarInfo, bytes]:
    return member(name, size=len(data)), data


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, tarfile.SYMTYPE, target), b""


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil", "a/.."])
def test_a_name_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(UnexpectedAnswer, match="leads out"):
        unpack(archive(file(name)), tmp_path / "in")
    assert [each.name for each in tmp_path.iterdir()] == ["in"]


def test_no_file_is_written_through_a_link(tmp_path: Path) -> None:
    outside, inside = tmp_path / "out", tmp_path / "in"
    outside.mkdir()
    inside.mkdir()
    unpack(archive(link("a", str(outside)), file("b")), inside)
    assert os.readlink(inside / "a") == str(outside)
    with pytest.raises(UnexpectedAnswer, match="is a link here"):
        unpack(archive(file("a/evil")), inside)
    unpack(archive(link("c", str(outside / "evil")), file("c", b"fine")), inside)
    (inside / "d").symlink_to(outside / "evil")
    unpack(archive(file("d", b"fine")), inside)
    assert (inside / "d").read_bytes() == b"fine" and not (inside / "d").is_symlink()
    assert list(outside.iterdir()) == []


def test_devices_hard_links_and_set_id_bits_are_not_made(tmp_path: Path) -> None:
    program = member("program", size=1)
    program.mode = 0o6755
    unpack(
        archive(
            (member("null", tarfile.CHRTYPE), b""),
            (member("hard", tarfile.LNKTYPE, "/etc/passwd"), b""),
            (program, b"x"),
        ),
        tmp_path,
    )
    assert [each.name for each in tmp_path.iterdir()] == ["program"]
    assert stat.S_IMODE((tmp_path / "program").stat().st_mode) & 0o7000 == 0


@pytest.mark.parametrize("damage", [b"x" * 2000, b""])
def test_a_damaged_archive_is_a_clear_error(tmp_path: Path, damage: bytes) -> None:
    with pytest.raises(UnexpectedAnswer, match="damaged"):
        unpack(io.BytesIO(damage), tmp_path)


def test_a_tree_makes_the_round_trip(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "deep" / ("d" * 120)).mkdir(parents=True)
    (source / "deep" / ("d" * 120) / "file").write_bytes(b"x" * 1000)
    (source / os.fsdecode(b"latin\xe9")).write_bytes(b"")
    (source / "read-only").mkdir(mode=0o555)
    (source / "link").symlink_to("nowhere")
    os.mkfifo(source / "fifo")
    target.mkdir()
    unpack(io.BytesIO(b"".join(tar_pieces(source))), target)
    assert tree_size(source) == 1000
    assert sorted(os.listdir(os.fsencode(target))) == [b"deep", b"latin\xe9", b"link", b"read-only"]
    assert (target / "deep" / ("d" * 120) / "file").read_bytes() == b"x" * 1000
    assert stat.S_IMODE((target / "read-only").stat().st_mode) == 0o555


def test_a_file_that_becomes_shorter_fails_the_upload(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"123")
    with pytest.raises(OSError, match="became shorter"):
        list(file_pieces(path, 4))
    assert b"".join(file_pieces(path, 2)) == b"12"
