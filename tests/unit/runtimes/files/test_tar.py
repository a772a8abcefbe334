"""Downloads and uploads of trees as tar streams, through the file agent."""

from __future__ import annotations

import io
import os
import socket
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from codehub.runtimes.files.protocol import FileCode, FileRefused
from tests.file_agents import chunks, content, file_session


def tar_of(
    *members: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes], form: int = tarfile.GNU_FORMAT
) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for member in members:
            info, data = member if isinstance(member, tuple) else (member, b"")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    for key, value in {"mode": 0o644, **fields}.items():
        setattr(info, key, value)
    return info


async def in_pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def make_tree(top: Path) -> None:
    (top / "sub/empty").mkdir(parents=True)
    (top / "sub").chmod(0o750)
    (top / "small").write_bytes(b"content")
    (top / "small").chmod(0o600)
    (top / "large").write_bytes(os.urandom(3 << 20) + b"odd")
    (top / "nothing").touch()
    (top / "sub" / ("long" * 50)).write_bytes(b"x" * 512)
    (top / "sub/link").symlink_to("../small")
    Path(os.fsdecode(bytes(top) + b"/bad\xff")).write_bytes(b"bad")
    os.utime(top / "small", (1, 1_000_000_000))


def tree_facts(top: Path) -> dict[str, tuple[int, bytes | str]]:
    facts = {}
    for path in sorted(top.rglob("*")):
        mode = path.lstat().st_mode
        is_link = path.is_symlink()
        value = str(path.readlink()) if is_link else path.read_bytes() if path.is_file() else b""
        facts[str(path.relative_to(top))] = (mode, value)
    return facts


async def test_a_tree_survives_download_and_upload(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    make_tree(source)
    os.mkfifo(source / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source / "socket"))
    async with file_session(tmp_path) as session:
        data = await content(await session.download(b"source"))
        unpacked = await session.upload(b"copy", in_pieces(data, 777))
    for special in ("fifo", "socket"):
        (source / special).unlink()
    assert tree_facts(tmp_path / "copy") == tree_facts(source)
    assert (tmp_path / "copy/small").stat().st_mtime == 1_000_000_000
    files = [path for path in source.rglob("*") if path.is_file() and not path.is_symlink()]
    assert (unpacked.entries, unpacked.bytes) == (8, sum(path.stat().st_size for path in files))


async def test_other_programs_read_a_download(tmp_path: Path) -> None:
    make_tree(tmp_path)
    async with file_session(tmp_path) as session:
        data = await content(await session.download(b""))
        one = await content(await session.download(b"small"))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert {name.rstrip("/") for name in tar.getnames()} == set(tree_facts(tmp_path))
    with tarfile.open(fileobj=io.BytesIO(one)) as tar:
        assert tar.getnames() == ["small"]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
async def test_uploads_of_every_common_format_are_unpacked(tmp_path: Path, form: int) -> None:
    source = tmp_path / "source"
    source.mkdir()
    make_tree(source)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for path in source.iterdir():
            if form != tarfile.USTAR_FORMAT or b"\xff" not in bytes(path):
                tar.add(path, f"./{path.name}", recursive=path.name != "sub" or form != tarfile.USTAR_FORMAT)
    async with file_session(tmp_path) as session:
        await session.upload(b"copy", chunks(buffer.getvalue()))
    expected = tree_facts(source)
    found = tree_facts(tmp_path / "copy")
    assert found == {name: expected[name] for name in found} and len(found) >= 4


async def test_a_pax_upload_keeps_long_names_and_exact_times(tmp_path: Path) -> None:
    name = "d" * 200 + "/" + "é" * 100
    data = tar_of((member(name, mtime=12.5), b"1"), form=tarfile.PAX_FORMAT)
    async with file_session(tmp_path) as session:
        await session.upload(b"", chunks(data))
    assert (tmp_path / name).stat().st_mtime_ns == 12_500_000_000


async def test_hard_links_within_an_upload_share_their_file(tmp_path: Path) -> None:
    data = tar_of((member("a"), b"x"), member("b/c", tarfile.LNKTYPE, linkname="a"))
    async with file_session(tmp_path) as session:
        await session.upload(b"", chunks(data))
        await session.upload(b"", chunks(data))
    assert (tmp_path / "a").stat().st_ino == (tmp_path / "b/c").stat().st_ino
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    return member(name, kind, linkname=target)


@pytest.mark.parametrize(
    "members",
    [
        [(member("../escaped"), b"x")],
        [(member("a/../../escaped"), b"x")],
        [(member("/tmp/escaped"), b"x")],
        [link("out", ".."), (member("out/escaped"), b"x")],
        [link("out", ".."), member("out", tarfile.DIRTYPE), (member("out/escaped"), b"x")],
        [link("hard", "../secret", tarfile.LNKTYPE)],
        [link("to-secret", "../secret"), link("hard", "to-secret", tarfile.LNKTYPE)],
        [(member("existing/escaped"), b"x")],
    ],
)
async def test_nothing_is_written_outside_the_target(
    tmp_path: Path, members: list[tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]]
) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "target/existing").symlink_to(tmp_path)
    async with file_session(tmp_path) as session:
        with pytest.raises(FileRefused):
            await session.upload(b"target", chunks(tar_of(*members)))
    assert sorted(os.listdir(tmp_path)) == ["secret", "target"]
    assert (tmp_path / "secret").stat().st_nlink == 1
    assert not any(name.startswith(".codehub") for name in os.listdir(tmp_path / "target"))


async def test_an_entry_replaces_a_link_and_does_not_write_through_it(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "secret").write_text("secret")
    data = tar_of(member("link", tarfile.SYMTYPE, linkname="../secret"), (member("link"), b"new"))
    async with file_session(tmp_path) as session:
        await session.upload(b"target", chunks(data))
    assert (tmp_path / "secret").read_text() == "secret"
    assert (tmp_path / "target/link").read_text() == "new"


async def test_devices_are_left_out_and_a_read_only_directory_is_filled(tmp_path: Path) -> None:
    data = tar_of(
        member("null", tarfile.CHRTYPE, devmajor=1, devminor=3),
        member("fifo", tarfile.FIFOTYPE),
        member("ro", tarfile.DIRTYPE, mode=0o555, mtime=5),
        (member("ro/file"), b"x"),
    )
    async with file_session(tmp_path) as session:
        await session.upload(b"new", chunks(data))
    assert os.listdir(tmp_path / "new") == ["ro"]
    assert ((tmp_path / "new/ro").stat().st_mode & 0o777, (tmp_path / "new/ro").stat().st_mtime) == (0o555, 5)


def _huge_header() -> bytes:
    info = member("x", tarfile.GNUTYPE_LONGNAME)
    info.size = 1 << 40
    return info.tobuf(tarfile.GNU_FORMAT)


def _sparse() -> bytes:
    return tar_of((member("x", pax_headers={"GNU.sparse.major": "1"}), b"x"), form=tarfile.PAX_FORMAT)


def _negative_size() -> bytes:
    block = bytearray(member("x").tobuf(tarfile.GNU_FORMAT)[:512])
    block[124:136] = b"\xff" * 12
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize(
    "make",
    [
        lambda: b"not a tar archive".ljust(1024, b"!"),
        lambda: tar_of((member("x"), b"content"))[:515],
        lambda: tar_of((member("x"), b"content"))[:300],
        _huge_header,
        _sparse,
        _negative_size,
        lambda: tar_of((member("x", mtime=1 << 80), b"x")),
    ],
)
async def test_a_malformed_upload_is_refused(tmp_path: Path, make: Callable[[], bytes]) -> None:
    async with file_session(tmp_path) as session:
        with pytest.raises(FileRefused) as refusal:
            await session.upload(b"", chunks(make()))
        assert refusal.value.code in (FileCode.INVALID, FileCode.FAILED)
    assert os.listdir(tmp_path) == []


async def test_a_directory_that_cannot_be_read_ends_the_download(tmp_path: Path) -> None:
    """A stream that misses a directory would look complete."""
    deep = tmp_path
    for _ in range(220):
        deep = deep / "d"
        deep.mkdir()
    async with file_session(tmp_path) as session:
        with pytest.raises(FileRefused, match="cannot be read"):
            await content(await session.download(b""))


@pytest.mark.parametrize("last", [b"", b"\0" * 511])
async def test_an_upload_that_ends_between_two_entries_is_no_complete_one(
    tmp_path: Path, last: bytes
) -> None:
    """The client's tar has ended early: what it sent is there, and the client learns of it."""
    data = tar_of(member("sub", tarfile.DIRTYPE, mode=0o755), (member("sub/first"), b"x" * 512))
    assert data[1536:2048] == bytes(512), "the end of the archive"
    async with file_session(tmp_path) as session:
        with pytest.raises(FileRefused, match="incomplete") as refusal:
            await session.upload(b"", chunks(data[:1536] + last))
        assert refusal.value.code is FileCode.INVALID
        assert (tmp_path / "sub/first").read_bytes() == b"x" * 512
        assert (await session.upload(b"", chunks(data[:2048]))).entries == 2, "one block of zeros is enough"
