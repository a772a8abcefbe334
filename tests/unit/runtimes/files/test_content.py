"""Reading and replacing files through the file agent."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from codehub.runtimes.files.client import FileSession
from codehub.runtimes.files.protocol import FileCode, FileRefused, WriteRequest
from tests.file_agents import chunks, content, file_session


@pytest.fixture(params=["unnamed", "named"])
def temporary(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with and without O_TMPFILE: kernels without it take it for O_DIRECTORY."""
    if request.param == "named":
        monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)


async def refused(session: FileSession, path: bytes, code: FileCode) -> None:
    with pytest.raises(FileRefused) as refusal:
        await session.open(path)
    assert refusal.value.code is code


async def test_a_range_of_a_file_is_read(tmp_path: Path) -> None:
    whole = os.urandom(1_000_000)
    (tmp_path / "file").write_bytes(whole)
    async with file_session(tmp_path) as session:
        facts = await session.open(b"file")
        assert facts.size == len(whole)
        assert await content(session.read(0, facts.size)) == whole
        assert await content(session.read(300_001, 400_003)) == whole[300_001:700_004]
        assert await content(session.read(5, 0)) == b""


async def test_a_file_that_grows_is_read_up_to_its_announced_size(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"first")
    async with file_session(tmp_path) as session:
        facts = await session.open(b"file")
        with file.open("ab") as appended:
            appended.write(b"second")
        assert await content(session.read(0, facts.size)) == b"first"


async def test_a_file_that_shrinks_while_it_is_read_is_an_error_not_padding(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(1000))
    async with file_session(tmp_path) as session:
        facts = await session.open(b"file")
        os.truncate(file, 10)
        with pytest.raises(FileRefused, match="became shorter"):
            await content(session.read(0, facts.size))


async def test_only_regular_files_have_content(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "directory").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
    (tmp_path / "link").symlink_to("fifo")
    async with file_session(tmp_path) as session:
        for path in (b"fifo", b"directory", b"socket", b"link", b"/dev/null", b"", b"/"):
            await refused(session, path, FileCode.NOT_A_FILE)
        for path in (b"fifo", b"socket", b"directory"):
            with pytest.raises(FileRefused) as refusal:
                await session.write(WriteRequest(path), chunks(b"x"))
            assert refusal.value.code is FileCode.NOT_A_FILE


async def test_links_in_a_circle_and_proc_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "exe").symlink_to("/proc/self/exe")
    async with file_session(tmp_path) as session:
        await refused(session, b"a", FileCode.INVALID)
        await refused(session, b"a/x", FileCode.INVALID)
        for path in (b"exe", b"/proc/self/environ", b"/proc/self/root/etc/passwd", b"/proc/self/fd/0"):
            await refused(session, path, FileCode.DENIED)


async def test_paths_with_dots_are_followed_as_the_system_does(tmp_path: Path) -> None:
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "link").symlink_to("deep/er")
    (tmp_path / "deep/file").write_bytes(b"found")
    async with file_session(tmp_path) as session:
        absolute = b"/../.." + bytes(tmp_path) + b"/deep/file"
        for path in (b"link/../file", b"./deep//./file", b"deep/er/../../deep/file", absolute):
            facts = await session.open(path)
            assert await content(session.read(0, facts.size)) == b"found"
        await refused(session, b"missing/../deep/file", FileCode.NOT_FOUND)


@pytest.mark.usefixtures("temporary")
async def test_a_replaced_file_keeps_its_mode_and_a_new_one_follows_the_umask(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "old").chmod(0o750)
    async with file_session(tmp_path) as session:
        replaced = await session.write(WriteRequest(b"old"), chunks(b"ne", b"w"))
        assert (replaced.created, replaced.facts.mode) == (False, 0o750)
        new = await session.write(WriteRequest(b"new"), chunks())
        assert (new.created, new.facts.mode) == (True, 0o666 & ~_umask())
        assert (await session.write(WriteRequest(b"new", mode=0o4711), chunks())).facts.mode == 0o4711
        assert (await session.open(b"old")).etag == replaced.facts.etag
    assert (tmp_path / "old").read_bytes() == b"new"
    assert sorted(os.listdir(tmp_path)) == ["new", "old"]


@pytest.mark.usefixtures("temporary")
async def test_a_write_goes_to_the_target_of_a_link(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("directory/target")
    async with file_session(tmp_path) as session:
        await session.write(WriteRequest(b"link"), chunks(b"content"))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "directory/target").read_bytes() == b"content"


@pytest.mark.usefixtures("temporary")
async def test_a_write_with_conditions_happens_only_if_they_hold(tmp_path: Path) -> None:
    async with file_session(tmp_path) as session:
        first = await session.write(WriteRequest(b"file", must_not_exist=True), chunks(b"1"))
        second = await session.write(WriteRequest(b"file", if_match=["x", first.facts.etag]), chunks(b"2"))
        assert second.facts.etag != first.facts.etag
        await session.write(WriteRequest(b"file", if_match=["*"]), chunks(b"3"))
        for request in (
            WriteRequest(b"file", if_match=[first.facts.etag]),
            WriteRequest(b"file", must_not_exist=True),
            WriteRequest(b"other", if_match=["*"]),
        ):
            with pytest.raises(FileRefused) as refusal:
                await session.write(request, chunks(b"4"))
            assert refusal.value.code is FileCode.CHANGED
    assert (tmp_path / "file").read_bytes() == b"3"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.usefixtures("temporary")
async def test_of_writers_with_the_same_condition_one_succeeds(tmp_path: Path, is_new: bool) -> None:
    (tmp_path / "file").write_bytes(b"old")
    async with file_session(tmp_path) as session:
        request = WriteRequest(b"file", if_match=[(await session.open(b"file")).etag])
    if is_new:
        request = WriteRequest(b"new", must_not_exist=True)
    go = asyncio.Event()

    async def write(number: int) -> bytes | None:
        async def data() -> AsyncIterator[bytes]:
            yield b"%d" % number
            await go.wait()

        async with file_session(tmp_path) as session:
            try:
                await session.write(request, data())
            except FileRefused as refusal:
                assert refusal.code is FileCode.CHANGED
                return None
            return b"%d" % number

    writers = [asyncio.ensure_future(write(number)) for number in range(5)]
    go.set()
    written = [each for each in await asyncio.gather(*writers) if each is not None]
    assert written == [(tmp_path / os.fsdecode(request.path)).read_bytes()]


@pytest.mark.usefixtures("temporary")
async def test_an_interrupted_upload_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(ConnectionError):
        async with file_session(tmp_path) as session:
            await session.write(WriteRequest(b"file"), interrupted())
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


async def interrupted() -> AsyncIterator[bytes]:
    yield bytes(1 << 20)
    raise ConnectionError


@pytest.mark.usefixtures("temporary")
async def test_readers_see_the_old_or_the_new_file(tmp_path: Path) -> None:
    versions = [bytes([number]) * 100_000 for number in range(20)]
    (tmp_path / "file").write_bytes(versions[0])
    seen = []

    async def read() -> None:
        async with file_session(tmp_path) as session:
            while not seen or seen[-1] != versions[-1]:
                facts = await session.open(b"file")
                seen.append(await content(session.read(0, facts.size)))

    reader = asyncio.ensure_future(read())
    async with file_session(tmp_path) as session:
        for version in versions[1:]:
            await session.write(WriteRequest(b"file"), chunks(version[:50_000], version[50_000:]))
    await reader
    assert all(each in versions for each in seen)


async def test_a_refused_upload_is_not_sent_to_its_end(tmp_path: Path) -> None:
    """The client stops when the agent refuses, and the session still works."""
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield bytes(1 << 16)
            await asyncio.sleep(0)

    async with file_session(tmp_path) as session:
        with pytest.raises(FileRefused):
            await session.write(WriteRequest(b"missing/file"), endless())
        assert sent == 0
        with pytest.raises(FileRefused, match="cannot be unpacked"):
            await session.upload(b"", endless_junk(endless()))
        assert sent < 10_000
        assert (await session.write(WriteRequest(b"file"), chunks(b"x"))).created


async def endless_junk(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield b"x" * 512
    async for piece in pieces:
        yield piece


async def test_the_agent_ends_when_its_client_stops_reading_and_goes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(8 << 20))
    async with file_session(tmp_path) as session:
        facts = await session.open(b"file")
        await anext(session.read(0, facts.size))


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
