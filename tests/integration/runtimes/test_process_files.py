"""Files of a running workspace, on the process runtime."""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import replace

import pytest

from codehub.host.processes import descendants
from codehub.runtimes.base import WorkloadSpec
from codehub.runtimes.files.client import FileSession, FilesUnavailable
from codehub.runtimes.files.connection import AgentFailed
from codehub.runtimes.files.protocol import (
    DeleteRequest,
    FileCode,
    FileKind,
    FileRefused,
    ListRequest,
    SearchRequest,
    WriteRequest,
)
from codehub.runtimes.process.files import ProcessFiles
from tests.file_agents import chunks, content
from tests.integration.runtimes.conftest import TINY, RuntimeFixture, state_of
from tests.waiting import eventually

MiB = 1 << 20


def open_files(fixture: RuntimeFixture, workspace_id: str = "w1") -> AbstractAsyncContextManager[FileSession]:
    return ProcessFiles(fixture.runtime.commands).open_files(workspace_id)


async def refusal(session: FileSession, path: bytes) -> FileCode:
    with pytest.raises(FileRefused) as refused:
        await session.open(path)
    return refused.value.code


def agents(fixture: RuntimeFixture, workspace_id: str = "w1") -> list[int]:
    """Return the processes that serve files of a workspace: supervisors and agents."""
    keeper = state_of(fixture.directory(workspace_id))["keeper"]
    assert isinstance(keeper, dict)
    found = []
    for process in descendants(keeper["pid"]):
        try:
            with open(f"/proc/{process.pid}/cmdline", "rb") as file:
                if file.read().startswith(b"codehub-files"):
                    found.append(process.pid)
        except FileNotFoundError:
            continue
    return found


async def no_agents(fixture: RuntimeFixture) -> None:
    await eventually(
        lambda: asyncio.to_thread(agents, fixture), "the agents to end", lambda found: found == []
    )


async def random_chunks(count: int, digest: hashlib._Hash) -> AsyncIterator[bytes]:
    for _ in range(count):
        piece = os.urandom(4096) * 256
        digest.update(piece)
        yield piece


async def test_a_large_file_arrives_as_it_was_and_belongs_to_the_user(fixture: RuntimeFixture) -> None:
    spec = await fixture.started("w1")
    sent, received = hashlib.sha256(), hashlib.sha256()
    async with open_files(fixture) as session:
        written = await session.write(WriteRequest(b"large", mode=0o640), random_chunks(64, sent))
        facts = await session.open(b"large")
        async for piece in session.read(0, facts.size):
            received.update(piece)
    assert (written.created, facts.size, sent.digest()) == (True, 64 * MiB, received.digest())
    found = (spec.home / "large").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (spec.uid, spec.uid, 0o640)
    await no_agents(fixture)


async def test_an_agent_is_confined_as_a_command_is(fixture: RuntimeFixture) -> None:
    """The same user, namespaces, control groups, rights and filter of system calls as the IDE."""
    await fixture.started("w1")
    script = (
        "for p in /proc/[0-9]*; do if grep -qs ^codehub-files $p/cmdline; then"
        " grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp:|Umask)' $p/status; cat $p/cgroup; fi; done"
    )
    own = script.replace("/proc/[0-9]*", "/proc/self").replace("^codehub-files", ".")
    async with open_files(fixture):
        assert (await fixture.inside("w1", script)).split() == (await fixture.inside("w1", own)).split()
        supervisor, agent = sorted(agents(fixture))
        namespaces = "for n in $(ls /proc/self/ns); do readlink /proc/self/ns/$n; done"
        own_namespaces = (await fixture.inside("w1", namespaces)).split()
        links = [f"/proc/{agent}/ns/{name}" for name in os.listdir(f"/proc/{agent}/ns")]
        assert {os.readlink(link) for link in links} == set(own_namespaces)
        assert os.stat(f"/proc/{supervisor}").st_uid == 0


async def test_nothing_of_codehub_is_readable_through_an_agent(fixture: RuntimeFixture) -> None:
    """Neither through its own paths, nor by another process of the workspace."""
    await fixture.started("w1")
    look = (
        "for p in /proc/[0-9]*; do if grep -qs ^codehub-files $p/cmdline; then echo agent;"
        " cat $p/environ $p/maps $p/mem $p/auxv $p/syscall; ls $p/fd $p/cwd/ $p/root/ $p/map_files;"
        " readlink $p/exe; fi; done 2>/dev/null"
    )
    async with open_files(fixture) as session:
        assert await fixture.inside("w1", look) == "agent\n"
        _, agent = sorted(agents(fixture))
        descriptors = {
            os.readlink(f"/proc/{agent}/fd/{number}") for number in os.listdir(f"/proc/{agent}/fd")
        }
        assert {name.partition(":")[0] for name in descriptors} == {"/dev/null", "socket"}
        assert len(os.listdir(f"/proc/{agent}/fd")) == 4
        for path in (
            b"self/environ",
            b"self/exe",
            b"self/maps",
            b"self/fd/0",
            b"1/root/etc/passwd",
            b"version",
        ):
            assert await refusal(session, b"/proc/" + path) is FileCode.DENIED
        for path in (bytes(fixture.data_dir), b"/run/codehub/execs", b"/root"):
            with pytest.raises(FileRefused):
                await session.list(ListRequest(path))
        result = await session.search(SearchRequest(b"/", b"environ", contents=False))
        assert not any(match.path.startswith(b"proc/") for match in result.matches)


async def test_links_out_of_the_home_lead_where_a_command_would_get(fixture: RuntimeFixture) -> None:
    spec = await fixture.started("w1")
    (fixture.data_dir / "secret").write_text("of the host")
    await fixture.inside(
        "w1", f"ln -s {fixture.data_dir}/secret a; ln -s /etc/shadow b; ln -s /etc/passwd c; ln -s / d"
    )
    async with open_files(fixture) as session:
        assert await refusal(session, b"a") is FileCode.NOT_FOUND
        assert await refusal(session, b"b") is FileCode.DENIED
        facts = await session.open(b"c")
        inside = await fixture.inside("w1", "cat /etc/passwd")
        assert (await content(session.read(0, facts.size))).decode() == inside
        assert await refusal(session, b"d" + bytes(spec.home)) is FileCode.NOT_FOUND
        for path in (b"c", b"/etc/new", b"b"):
            with pytest.raises(FileRefused) as refused:
                await session.write(WriteRequest(path), chunks(b"x"))
            assert refused.value.code is FileCode.DENIED


async def test_special_files_are_not_opened(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    await fixture.inside(
        "w1", "mkfifo fifo; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'"
    )
    async with open_files(fixture) as session:
        kinds = {entry.path: entry.kind for entry in (await session.list(ListRequest(b""))).entries}
        assert kinds == {b"fifo": FileKind.OTHER, b"socket": FileKind.OTHER}
        for path in (b"fifo", b"socket", b"/dev/zero", b"/dev/tty"):
            assert await refusal(session, path) is FileCode.NOT_A_FILE
        assert await content(await session.download(b"")) == bytes(1024)


async def test_names_that_change_kind_while_they_are_used_do_no_harm(fixture: RuntimeFixture) -> None:
    """A directory becomes a link, a file becomes a FIFO, and back, all the time."""
    spec = await fixture.started("w1")
    script = """
mkdir -p tree/d outside; echo x > tree/f; echo kept > outside/kept
(n=0; while [ ! -e stop ] && [ $n -lt 200000 ]; do n=$((n+1))
  rm -rf tree/d tree/f; ln -s ../outside tree/d; mkfifo tree/f
  rm -f tree/d tree/f; mkdir tree/d; echo x > tree/f
done; touch ended) >/dev/null 2>&1 </dev/null &
"""
    await fixture.inside("w1", script)
    async with asyncio.timeout(60), open_files(fixture) as session:
        for _ in range(60):
            for entry in (await session.list(ListRequest(b"tree", 5))).entries:
                assert not entry.path.startswith(b"d/")
            await session.search(SearchRequest(b"tree", b"kept", contents=True))
            for attempt in (
                session.open(b"tree/f"),
                session.write(WriteRequest(b"tree/f"), chunks(b"y")),
                session.delete(DeleteRequest(b"tree/d", recursive=True)),
            ):
                with suppress(FileRefused):
                    await attempt
    (spec.home / "stop").touch()
    await eventually(lambda: asyncio.to_thread((spec.home / "ended").exists), "the races to end", bool)
    assert (spec.home / "outside/kept").read_text() == "kept\n"


@contextmanager
def mounted_home(spec: WorkloadSpec, size: str) -> Iterator[None]:
    """Mount a tmpfs as the home."""
    options = f"size={size},mode=700,uid={spec.uid},gid={spec.uid}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", spec.home], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", spec.home], check=True)


async def test_a_home_with_no_space_left_keeps_the_old_file(fixture: RuntimeFixture) -> None:
    spec = fixture.spec("w1")
    with mounted_home(spec, "2m"):
        await fixture.runtime.start(spec)
        await fixture.until("w1", lambda fact: fact.ready)
        async with open_files(fixture) as session:
            await session.write(WriteRequest(b"file"), chunks(b"old"))
            with pytest.raises(FileRefused, match="no space is left") as refused:
                await session.write(WriteRequest(b"file"), chunks(*[bytes(MiB)] * 50))
            assert refused.value.code is FileCode.NO_SPACE
            facts = await session.open(b"file")
            assert await content(session.read(0, facts.size)) == b"old"
            await session.write(WriteRequest(b"other"), chunks(bytes(MiB)))
        assert sorted(os.listdir(spec.home)) == ["file", "other"]
        await fixture.runtime.stop("w1")


async def test_a_client_that_goes_in_the_middle_ends_its_agent_and_leaves_nothing(
    fixture: RuntimeFixture,
) -> None:
    spec = await fixture.started("w1")
    (spec.home / "file").write_bytes(b"old")
    os.truncate(spec.home / "file", 3)

    async def interrupted() -> AsyncIterator[bytes]:
        yield bytes(MiB)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        async with open_files(fixture) as session:
            await session.write(WriteRequest(b"new"), interrupted())
    await no_agents(fixture)
    assert os.listdir(spec.home) == ["file"]
    assert (spec.home / "file").read_bytes() == b"old"


async def test_a_stopped_agent_is_an_error_and_is_killed(fixture: RuntimeFixture) -> None:
    """The workspace's user may signal the agent, which is a process of that user."""
    await fixture.started("w1")
    async with FileSession.connect(str(fixture.runtime.commands.broker_socket("w1")), 0.5) as session:
        await fixture.inside("w1", "pkill -STOP -f ^codehub-files")
        with pytest.raises(AgentFailed, match="did not work on the file") as failed:
            await session.list(ListRequest(b""))
        assert failed.value.stalled
    await no_agents(fixture)


async def test_a_huge_directory_is_listed_up_to_the_limit(fixture: RuntimeFixture) -> None:
    spec = fixture.spec("w1")
    with mounted_home(spec, "400m"):  # which makes files much faster than a disk
        many = spec.home / "many"
        many.mkdir()
        os.chown(many, spec.uid or 0, spec.uid or 0)
        for number in range(200_000):
            os.mknod(many / f"{number:06}")
        await fixture.runtime.start(spec)
        await fixture.until("w1", lambda fact: fact.ready)
        async with open_files(fixture) as session:
            listed = await session.list(ListRequest(b"many", 1, 10_000))
            assert (len(listed.entries), listed.truncated) == (10_000, True)
            assert listed.entries[-1].path == b"009999"
            result = await session.search(SearchRequest(b"many", b"19999", contents=False, limit=5))
            assert len(result.matches) == 5
            await session.delete(DeleteRequest(b"many", recursive=True))
            assert (await session.list(ListRequest(b""))).entries == []
        await fixture.runtime.stop("w1")


async def test_agents_count_as_processes_of_the_workspace(fixture: RuntimeFixture) -> None:
    """So however many clients there are, they take nothing from other workspaces."""
    await fixture.started("w1", replace(TINY, pids=20))
    opened = [open_files(fixture) for _ in range(20)]
    outcomes = await asyncio.gather(*(each.__aenter__() for each in opened), return_exceptions=True)
    assert any(isinstance(outcome, FileRefused | AgentFailed) for outcome in outcomes)
    for each, outcome in zip(opened, outcomes, strict=True):
        if isinstance(outcome, FileSession):
            await each.__aexit__(None, None, None)
    await no_agents(fixture)


async def test_a_workspace_that_stops_ends_its_agents(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    async with open_files(fixture) as session:
        await fixture.runtime.stop("w1")
        with pytest.raises(AgentFailed, match="ended the operation"):
            await session.list(ListRequest(b""))
    with pytest.raises(FilesUnavailable, match="has stopped"):
        async with open_files(fixture):
            pass
