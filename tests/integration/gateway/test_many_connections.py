"""Many clients at once, incomplete requests, and upstreams that die or never respond."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar, cast

import pytest

from tests.integration.gateway.client_group import ClientGroup, GroupClient, request, upgrade
from tests.integration.gateway.gateway_process import GatewayProcess, gateway_process, raised_descriptor_limit
from tests.integration.gateway.harness import NEVER, Client, without_policy
from tests.selection import EVERYTHING
from tests.waiting import eventually, until

SOCKETS = 2000 if EVERYTHING else 200
HALF_OPEN = 5000 if EVERYTHING else 500
TIMEOUT = NEVER / 2
"""Seconds: a timeout that expires before all others."""
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
PING = b"\x81\x84\x00\x00\x00\x00ping"


@pytest.fixture(autouse=True)
def raise_descriptor_limit() -> Iterator[None]:
    with raised_descriptor_limit():
        yield


class Workspace(asyncio.Protocol):
    """Server that responds, echoes data in a tunnel, and never responds to paths below /silent."""

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


class WorkspaceServer:
    """The workspace behind the gateway, which a test can kill and start again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.address = f"unix:{path}"

    async def start(self, backlog: int = 100) -> None:
        self.path.unlink(missing_ok=True)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(Workspace, str(self.path), backlog=backlog)

    def kill(self) -> None:
        self._server.close()
        for connection in list(Workspace.open):
            cast(Workspace, connection).transport.abort()
        self.path.unlink(missing_ok=True)


@pytest.fixture
async def workspace(tmp_path: Path) -> AsyncIterator[WorkspaceServer]:
    server = WorkspaceServer(tmp_path / "ide.sock")
    await server.start()
    yield server
    server.kill()


async def connect(gateway: GatewayProcess) -> Client:
    return Client(*await asyncio.open_connection("127.0.0.1", gateway.port))


class SteadyClient:
    """Client that sends one request after the other, and counts the responses."""

    def __init__(self) -> None:
        self.responses = 0
        self._stop = asyncio.Event()

    async def run(self, gateway: GatewayProcess) -> None:
        client = await connect(gateway)
        while not self._stop.is_set():
            client.send(request(gateway))
            assert (await client.response())[1] == b"hello"
            self.responses += 1
        client.close()

    async def wait_for_responses(self) -> None:
        """Wait for twenty more responses."""
        wanted = self.responses + 20
        await until(lambda: self.responses >= wanted, "responses to the steady client")

    def stop(self) -> None:
        self._stop.set()


@asynccontextmanager
async def steady_client(gateway: GatewayProcess) -> AsyncIterator[SteadyClient]:
    client = SteadyClient()
    async with asyncio.TaskGroup() as group:
        group.create_task(client.run(gateway))
        yield client
        client.stop()


async def test_websockets_end_with_their_upstream_and_open_again_when_it_is_back(
    workspace: WorkspaceServer,
) -> None:
    async with gateway_process(upstream=workspace.address) as gateway:
        (first,) = await ClientGroup(gateway).connect(1, request(gateway))
        assert await first.status() == 200
        descriptors = gateway.descriptors()

        group = ClientGroup(gateway)
        await group.connect(SOCKETS, upgrade(gateway))
        assert await group.statuses() == {101}
        assert gateway.descriptors() >= descriptors + 2 * SOCKETS - 1
        workspace.kill()
        await group.wait_closed()
        memory = gateway.resident()  # only now: the allocator keeps what the first connections took

        refused = ClientGroup(gateway)
        await refused.connect(SOCKETS, upgrade(gateway))
        assert await refused.statuses() == {502}  # the route says RUNNING, but nothing listens
        await refused.wait_closed()
        await gateway.send_command("STANDBY")
        refused = ClientGroup(gateway)
        await refused.connect(10, upgrade(gateway))
        assert await refused.statuses() == {503}
        assert all(b"\r\nRetry-After: " in each.data for each in refused.clients)

        await workspace.start()
        await gateway.send_command("RUNNING")
        group = ClientGroup(gateway)
        await group.connect(SOCKETS, upgrade(gateway))
        assert await group.statuses() == {101}
        group.send(PING)
        await until(lambda: all(each.data.endswith(PING) for each in group.clients), "every echo")
        group.abort()
        await until(lambda: not Workspace.open, "the connections to the workspace to be closed")
        await until(lambda: gateway.descriptors() <= descriptors, "the gateway to close the rest")
        tables = (await gateway.resources())["tables"]
        assert not any(
            tables[name]
            for name in ("connections", "connected sessions", "connected workspaces", "inspectors")
        )
        assert gateway.resident() - memory < 8 << 20


async def test_incomplete_requests_do_not_delay_other_clients(workspace: WorkspaceServer) -> None:
    async with gateway_process(upstream=workspace.address, head=TIMEOUT) as gateway:
        descriptors = gateway.descriptors()
        async with steady_client(gateway) as client:
            slow = ClientGroup(gateway)
            await slow.connect(HALF_OPEN, f"GET / HTTP/1.1\r\nHost: {gateway.host}\r\n".encode())
            await until(lambda: gateway.descriptors() >= descriptors + HALF_OPEN, "all connections")
            await client.wait_for_responses()
            await gateway.elapse(TIMEOUT)
            slow.send(b"X-Slow: a\r\n")  # another line does not extend the timeout
            assert await slow.statuses() == {408}
            await slow.wait_closed()
            await client.wait_for_responses()
        await until(lambda: gateway.descriptors() <= descriptors + 3, "the gateway to close the rest")


async def test_an_upstream_that_never_responds_does_not_delay_other_requests(
    workspace: WorkspaceServer,
) -> None:
    async with gateway_process(upstream=workspace.address, response=TIMEOUT) as gateway:
        async with steady_client(gateway) as client:
            aborted, waiting = ClientGroup(gateway), ClientGroup(gateway)
            await aborted.connect(100, request(gateway, "/silent"))
            await waiting.connect(200, request(gateway, "/silent"))
            await until(lambda: len(Workspace.open) >= 300, "all requests")
            await client.wait_for_responses()
            aborted.abort()
            await until(lambda: len(Workspace.open) <= 201, "requests to end with their clients")
            await gateway.elapse(TIMEOUT)
            assert await waiting.statuses() == {504}
            await client.wait_for_responses()
        await until(lambda: len(Workspace.open) <= 1, "the connections to the workspace to be closed")


def count_responses(client: GroupClient) -> int:
    return without_policy(client.data).count(ANSWER)


async def test_connections_above_the_cap_get_a_503_and_those_below_it_are_served(
    workspace: WorkspaceServer,
) -> None:
    options = {"max_connections": 100, "max_connections_per_address": 1000}
    async with gateway_process(upstream=workspace.address, **options) as gateway:
        admitted, rejected = ClientGroup(gateway), ClientGroup(gateway)
        await admitted.connect(100, request(gateway))
        assert await admitted.statuses() == {200}
        await rejected.connect(300, b"")
        assert await rejected.statuses() == {503}
        for each in rejected.clients:
            assert b"\r\nRetry-After: " in each.data and b"Too many connections" in each.data
        admitted.send(request(gateway))
        await until(
            lambda: all(count_responses(each) == 2 for each in admitted.clients),
            "a second response for each client",
        )
        admitted.abort()
        await eventually(
            gateway.resources, "every connection to close", lambda found: not found["tables"]["connections"]
        )
        (again,) = await ClientGroup(gateway).connect(1, request(gateway))
        assert await again.status() == 200
