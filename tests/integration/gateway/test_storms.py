"""Crowds: clients that all come at once, that never finish, and upstreams that die or say nothing."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar, cast

import pytest

from tests.integration.gateway.crowd import Crowd, Member, request, upgrade
from tests.integration.gateway.harness import NEVER, Client, without_policy
from tests.integration.gateway.standalone import Standalone, many_descriptors, standalone
from tests.selection import EVERYTHING
from tests.waiting import eventually, until

SOCKETS = 2000 if EVERYTHING else 200
HALF_OPEN = 5000 if EVERYTHING else 500
LIMIT = NEVER / 2
"""Seconds: a limit that elapses before all others."""
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
PING = b"\x81\x84\x00\x00\x00\x00ping"


@pytest.fixture(autouse=True)
def roomy() -> Iterator[None]:
    with many_descriptors():
        yield


class Workspace(asyncio.Protocol):
    """Answers, echoes what comes through a tunnel, and says nothing at all below /silent."""

    open: ClassVar[set[asyncio.Protocol]] = set()

    def __init__(self) -> None:
        self.in_tunnel = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        Workspace.open.add(self)

    def data_received(self, data: bytes) -> None:
        if self.in_tunnel:
            self.transport.write(data)
        elif b"\r\nupgrade: websocket" in data.lower():
            self.in_tunnel = True
            self.transport.write(SWITCH)
        elif not data.startswith(b"GET /silent"):
            self.transport.write(ANSWER)

    def connection_lost(self, exc: Exception | None) -> None:
        Workspace.open.discard(self)


class Runner:
    """Starts and kills the workspace behind the gateway."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.address = f"unix:{path}"

    async def start(self, backlog: int = 100) -> None:
        self.path.unlink(missing_ok=True)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(Workspace, str(self.path), backlog=backlog)

    def die(self) -> None:
        self._server.close()
        for connection in list(Workspace.open):
            cast(Workspace, connection).transport.abort()
        self.path.unlink(missing_ok=True)


@pytest.fixture
async def workspace(tmp_path: Path) -> AsyncIterator[Runner]:
    runner = Runner(tmp_path / "ide.sock")
    await runner.start()
    yield runner
    runner.die()


async def connect(gateway: Standalone) -> Client:
    return Client(*await asyncio.open_connection("127.0.0.1", gateway.port))


class Steady:
    """A client that is served from beginning to end."""

    def __init__(self) -> None:
        self.served = 0
        self._stop = asyncio.Event()

    async def run(self, gateway: Standalone) -> None:
        client = await connect(gateway)
        while not self._stop.is_set():
            client.send(request(gateway))
            assert (await client.response())[1] == b"hello"
            self.served += 1
        client.close()

    async def is_served(self) -> None:
        """Wait for twenty more answers."""
        wanted = self.served + 20
        await until(lambda: self.served >= wanted, "the steady client to be served")

    def stop(self) -> None:
        self._stop.set()


@asynccontextmanager
async def steady(gateway: Standalone) -> AsyncIterator[Steady]:
    client = Steady()
    async with asyncio.TaskGroup() as group:
        group.create_task(client.run(gateway))
        yield client
        client.stop()


async def test_sockets_whose_upstream_dies_come_back(workspace: Runner) -> None:
    async with standalone(upstream=workspace.address) as gateway:
        (served,) = await Crowd(gateway).come(1, request(gateway))
        assert await served.status() == 200
        descriptors, memory = gateway.descriptors(), gateway.resident()

        crowd = Crowd(gateway)
        await crowd.come(SOCKETS, upgrade(gateway))
        assert await crowd.statuses() == {101}
        assert gateway.descriptors() >= descriptors + 2 * SOCKETS - 1
        workspace.die()
        await crowd.ended()

        refused = Crowd(gateway)
        await refused.come(SOCKETS, upgrade(gateway))
        assert await refused.statuses() == {502}  # it should run, and does not answer
        await refused.ended()
        await gateway.tell("STANDBY")
        refused = Crowd(gateway)
        await refused.come(10, upgrade(gateway))
        assert await refused.statuses() == {503}
        assert all(b"\r\nRetry-After: " in each.data for each in refused.members)

        await workspace.start()
        await gateway.tell("RUNNING")
        crowd = Crowd(gateway)
        await crowd.come(SOCKETS, upgrade(gateway))
        assert await crowd.statuses() == {101}
        crowd.say(PING)
        await until(lambda: all(each.data.endswith(PING) for each in crowd.members), "every echo")
        crowd.leave()
        await until(lambda: not Workspace.open, "the workspace to be let go")
        await until(lambda: gateway.descriptors() <= descriptors, "the gateway to close the rest")
        tables = (await gateway.census())["tables"]
        assert not any(
            tables[name] for name in ("connections", "live sessions", "live workspaces", "inspectors")
        )
        assert gateway.resident() - memory < 16 << 20


async def test_half_open_connections_keep_nobody_from_being_served(workspace: Runner) -> None:
    async with standalone(upstream=workspace.address, head=LIMIT) as gateway:
        descriptors = gateway.descriptors()
        async with steady(gateway) as client:
            slow = Crowd(gateway)
            await slow.come(HALF_OPEN, f"GET / HTTP/1.1\r\nHost: {gateway.host}\r\n".encode())
            await until(lambda: gateway.descriptors() >= descriptors + HALF_OPEN, "all of them")
            await client.is_served()
            await gateway.elapse(LIMIT)
            slow.say(b"X-Slow: a\r\n")  # a line more buys no time
            assert await slow.statuses() == {408}
            await slow.ended()
            await client.is_served()
        await until(lambda: gateway.descriptors() <= descriptors + 3, "the gateway to close the rest")


async def test_an_upstream_that_never_answers_holds_up_nobody_else(workspace: Runner) -> None:
    async with standalone(upstream=workspace.address, response=LIMIT) as gateway:
        async with steady(gateway) as client:
            leaving, staying = Crowd(gateway), Crowd(gateway)
            await leaving.come(100, request(gateway, "/silent"))
            await staying.come(200, request(gateway, "/silent"))
            await until(lambda: len(Workspace.open) >= 300, "all requests")
            await client.is_served()
            leaving.leave()
            await until(lambda: len(Workspace.open) <= 201, "requests to end with their clients")
            await gateway.elapse(LIMIT)
            assert await staying.statuses() == {504}
            await client.is_served()
        await until(lambda: len(Workspace.open) <= 1, "the workspace to be let go")


def answers(member: Member) -> int:
    return without_policy(member.data).count(ANSWER)


async def test_above_the_cap_there_is_a_clear_answer_and_below_it_service(workspace: Runner) -> None:
    options = {"max_connections": 100, "max_connections_per_address": 1000}
    async with standalone(upstream=workspace.address, **options) as gateway:
        inside, outside = Crowd(gateway), Crowd(gateway)
        await inside.come(100, request(gateway))
        assert await inside.statuses() == {200}
        await outside.come(300, b"")
        assert await outside.statuses() == {503}
        for each in outside.members:
            assert b"\r\nRetry-After: " in each.data and b"Too many connections" in each.data
        inside.say(request(gateway))
        await until(lambda: all(answers(each) == 2 for each in inside.members), "answers")
        inside.leave()
        await eventually(
            gateway.census, "every connection to end", lambda found: not found["tables"]["connections"]
        )
        (again,) = await Crowd(gateway).come(1, request(gateway))
        assert await again.status() == 200
