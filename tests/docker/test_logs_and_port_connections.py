"""Output of containers, and connections to their ports, as the access part reaches them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from codehub.runtimes.command_runtime import LogsUnavailable
from codehub.runtimes.docker.logs import PIECE_BYTES
from codehub.runtimes.docker.ports import DockerPorts
from codehub.runtimes.port_runtime import PortClosed, PortsUnavailable
from tests.docker.engine import OwnEngine
from tests.docker.test_commands import Commands
from tests.waiting import PATIENCE, eventually

ON_LOOPBACK = 3001


@pytest.fixture(scope="module")
def container(own_engine: OwnEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    directory = tmp_path_factory.mktemp("logs")
    directory.chmod(0o711)
    yield Commands(own_engine, directory)
    own_engine.clear()


@pytest.fixture
async def shared(container: Commands) -> AsyncIterator[Commands]:
    container.runtime = container.other_runtime()
    yield container
    await container.runtime.delete("w1")
    await container.runtime.close()


async def say(shared: Commands, script: str) -> None:
    """Add the output of a script to that of the container."""
    assert await shared.inside("w1", f"{{ {script}; }} > /proc/1/fd/1 && echo done") == "done\n"


async def read(shared: Commands, lines: int) -> bytes:
    """Return the last lines of the present output."""
    until = asyncio.Event()
    until.set()
    async with shared.runtime.commands.read_logs("w1", lines, until) as pieces:
        return b"".join([piece async for piece in pieces])


async def next_line(pieces: AsyncIterator[bytes]) -> bytes:
    received = b""
    while not received.endswith(b"\n"):
        received += await asyncio.wait_for(anext(pieces), PATIENCE)
    return received


async def test_output_follows_the_last_lines_through_a_restart_until_the_end(shared: Commands) -> None:
    await shared.started("w1")
    await say(shared, "echo one; echo two")
    await eventually(lambda: read(shared, 1), "the output", lambda last: last == b"two\n")
    until = asyncio.Event()
    async with shared.runtime.commands.read_logs("w1", 1, until) as pieces:
        assert await next_line(pieces) == b"two\n"
        await say(shared, "echo three >&2; echo three")
        assert await next_line(pieces) == b"three\n"
        await shared.runtime.delete("w1")
        await shared.started("w1")
        await say(shared, "echo four")
        assert await next_line(pieces) == b"four\n"
        await shared.runtime.delete("w1")
        until.set()
        async with asyncio.timeout(PATIENCE):
            assert [piece async for piece in pieces] == []


async def test_a_running_container_does_not_keep_a_stream_that_is_to_end(shared: Commands) -> None:
    await shared.started("w1")
    until = asyncio.Event()
    async with shared.runtime.commands.read_logs("w1", 10, until) as pieces:
        until.set()
        async with asyncio.timeout(PATIENCE):
            assert [piece async for piece in pieces] == []


async def test_a_reader_that_waits_holds_nothing_back_and_reads_on(
    shared: Commands,
) -> None:
    """In a flood, an engine may stop to send, report an error, and leave out or repeat output."""
    await shared.started("w1")
    await say(shared, "echo begin")
    until = asyncio.Event()
    async with shared.runtime.commands.read_logs("w1", 1, until) as pieces:
        assert await next_line(pieces) == b"begin\n"
        for end in (b"first end\n", b"second end\n"):
            await say(shared, f"seq 2000000; echo; echo {end.decode().strip()}")
            await eventually(lambda: read(shared, 1), "the output", lambda last, end=end: last == end)
            received = b""
            while not received.endswith(b"\n" + end):
                piece = await asyncio.wait_for(anext(pieces), PATIENCE)
                assert len(piece) <= PIECE_BYTES
                received = (received + piece)[-100:]


async def test_output_that_cannot_be_read_is_an_error_and_that_of_nothing_is_empty(shared: Commands) -> None:
    assert await read(shared, 10) == b""
    await shared.started("w1")
    await say(shared, "echo secret")
    await eventually(lambda: read(shared, 1), "the output", lambda last: last == b"secret\n")
    other, gone = shared.other_runtime("another"), shared.other_runtime(url="unix:///nonexistent/socket")
    until = asyncio.Event()
    until.set()
    async with other.commands.read_logs("w1", 10, until) as pieces:
        assert [piece async for piece in pieces] == []
    with pytest.raises(LogsUnavailable, match="does not answer"):
        async with gone.commands.read_logs("w1", 10, until):
            pass
    await other.close()
    await gone.close()


async def test_a_port_is_reached_at_the_address_of_its_container(shared: Commands) -> None:
    ports = DockerPorts(shared.runtime.commands)
    with pytest.raises(PortsUnavailable, match="it has stopped"):
        await ports.connect("w1", 8080)
    await shared.started("w1")
    assert shared.engine.inside("w1", f"httpd -p 127.0.0.1:{ON_LOOPBACK} -h /www").returncode == 0
    with await ports.connect("w1", 8080) as connection:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(connection, b"GET /healthz HTTP/1.0\r\n\r\n")
        answer = b""
        while data := await asyncio.wait_for(loop.sock_recv(connection, 1000), PATIENCE):
            answer += data
        assert answer.endswith(b"ok")
    for port in (ON_LOOPBACK, 3002):
        with pytest.raises(PortClosed, match=r"0\.0\.0\.0"):
            await ports.connect("w1", port)
    other, gone = shared.other_runtime("another"), shared.other_runtime(url="unix:///nonexistent/socket")
    for runtime in (other, gone):
        with pytest.raises(PortsUnavailable):
            await DockerPorts(runtime.commands).connect("w1", 8080)
        await runtime.close()
