"""Files of workspaces in containers. The image has no program that CodeHub needs for them."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from codehub.host.processes import ProcessId
from codehub.runtimes.docker.files import DockerFiles
from codehub.runtimes.files.client import FilesUnavailable
from codehub.runtimes.files.connection import AgentFailed
from codehub.runtimes.files.protocol import DeleteRequest, FileCode, FileRefused, ListRequest, WriteRequest
from tests.docker.engine import OwnEngine
from tests.docker.test_commands import UID, Commands
from tests.file_agents import chunks, content
from tests.waiting import eventually

AGENTS = "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -c ^codehub-files; true"


@pytest.fixture(scope="module")
def container(own_engine: OwnEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    directory = tmp_path_factory.mktemp("files")
    directory.chmod(0o711)
    yield Commands(own_engine, directory)
    own_engine.clear()


@pytest.fixture
async def shared(container: Commands) -> AsyncIterator[Commands]:
    container.runtime = container.other_runtime()
    yield container
    await container.runtime.close()


@pytest.fixture
def files(shared: Commands) -> DockerFiles:
    return DockerFiles(shared.runtime.commands)


async def test_files_are_written_and_read_as_the_workspace_does(shared: Commands, files: DockerFiles) -> None:
    spec = await shared.started("w1")
    whole = os.urandom(1 << 20) * 16
    async with files.open_files("w1") as session:
        written = await session.write(WriteRequest(b"file", mode=0o640), chunks(whole))
        facts = await session.open(b"file")
        assert written.created and await content(session.read(0, facts.size)) == whole
        assert [entry.path for entry in (await session.list(ListRequest(b"."))).entries] == [b"file"]
        packed = await content(await session.download(b""))
        assert (await session.upload(b"copy", chunks(packed))).bytes == len(whole)
        await session.delete(DeleteRequest(b"copy", recursive=True))
    found = (spec.home / "file").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (UID, UID, 0o640)


async def test_an_agent_is_confined_as_the_container_is(shared: Commands, files: DockerFiles) -> None:
    await shared.started("w1")
    fields = "grep -hE '^(Uid|Gid|Cap|NoNewPrivs|Seccomp:)'"
    async with files.open_files("w1") as session:
        status = "for p in /proc/[0-9]*; do grep -qs ^codehub-files $p/cmdline && F $p/status; done; true"
        agent = await shared.inside("w1", status.replace("F", fields))
        assert agent.split() == (await shared.inside("w1", f"{fields} /proc/self/status")).split()
        look = (
            "for p in /proc/[0-9]*; do grep -qs ^codehub-files $p/cmdline"
            " && cat $p/environ $p/maps && ls $p/fd; done"
        )
        assert await shared.inside("w1", f"{look}; true") == ""
        container = shared.runtime.commands.find_container("w1")
        (pid,) = [pid for pid in _agents() if _pid_namespace(pid) == _pid_namespace(container.init.pid)]
        for kind in ("mnt", "pid", "net", "ipc", "uts", "cgroup"):
            link = f"ns/{kind}"
            assert os.readlink(f"/proc/{pid}/{link}") == os.readlink(f"/proc/{container.init.pid}/{link}")
        for path in (b"/proc/self/environ", b"/proc/self/exe", b"/proc/1/root/etc/passwd"):
            with pytest.raises(FileRefused) as refused:
                await session.open(path)
            assert refused.value.code is FileCode.DENIED
        inside = Path(f"/proc/{pid}/cgroup").read_text()
    assert container.id in inside


def _agents() -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (process := ProcessId.of(int(entry))) is not None:
            try:
                command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            except FileNotFoundError:
                continue
            if command.startswith(b"codehub-files\0"):
                found.append(process.pid)
    return found


def _pid_namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/pid")


async def test_hostile_homes_in_a_container(shared: Commands, files: DockerFiles) -> None:
    await shared.started("w1")
    secret = shared.runtime.commands.root / "secret"
    secret.write_text("of the host")
    await shared.inside("w1", f"touch x; ln -s {secret} out")
    async with files.open_files("w1") as session:
        for path, code in (
            (b"out", FileCode.NOT_FOUND),
            (bytes(secret), FileCode.NOT_FOUND),
            (b"/dev/zero", FileCode.NOT_A_FILE),
            (b"/etc/passwd/x", FileCode.NOT_A_DIRECTORY),
        ):
            with pytest.raises(FileRefused) as refused:
                await session.open(path)
            assert refused.value.code is code
        with pytest.raises(FileRefused):
            await session.write(WriteRequest(b"/etc/passwd"), chunks(b"x"))


async def test_a_client_that_goes_ends_its_agent_and_leaves_nothing(
    shared: Commands, files: DockerFiles
) -> None:
    spec = await shared.started("w1")

    async def interrupted() -> AsyncIterator[bytes]:
        yield bytes(1 << 20)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        async with files.open_files("w1") as session:
            await session.write(WriteRequest(b"new"), interrupted())
    await eventually(
        lambda: shared.inside("w1", AGENTS), "the agent to end", lambda found: found.strip() == "0"
    )
    assert os.listdir(spec.home) == []


async def test_a_stopped_container_offers_no_files(shared: Commands, files: DockerFiles) -> None:
    await shared.started("w1")
    async with files.open_files("w1") as session:
        await shared.runtime.stop("w1")
        with pytest.raises(AgentFailed, match="ended the operation"):
            await session.list(ListRequest(b""))
    with pytest.raises(FilesUnavailable, match="has stopped"):
        async with files.open_files("w1"):
            pass
