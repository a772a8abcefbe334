"""After many requests and upgrades, the gateway holds no more resources than before."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.integration.gateway.client_group import ClientGroup, request, upgrade
from tests.integration.gateway.gateway_process import GatewayProcess, gateway_process, raised_descriptor_limit
from tests.integration.gateway.harness import OWN_POLICY
from tests.selection import EVERYTHING
from tests.waiting import eventually, until

REQUESTS = 100_000 if EVERYTHING else 10_000
UPGRADES = 10_000 if EVERYTHING else 800
WAVE = UPGRADES // 2
"""Upgrades between two measurements. Memory grows with the number that end at once."""
CONNECTIONS = 50
PIPELINED = 50
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
PING = b"\x81\x84\x00\x00\x00\x00ping"
GROWTH = 4 << 20
"""Bytes that the allocator may keep. A leak of a hundred per request would be ten million."""
TRANSIENT = ("connections", "idle upstreams", "lookups", "checks", "routes")
"""Tables that become empty without connections.

A pushed route change with open connections loads the route again. One without only removes it.
"""


@pytest.fixture(autouse=True)
def raise_descriptor_limit() -> Iterator[None]:
    with raised_descriptor_limit():
        yield


class Workspace(asyncio.Protocol):
    """Server that responds, echoes, or breaks off, depending on the path."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.in_tunnel = False

    def data_received(self, data: bytes) -> None:
        if self.in_tunnel:
            self.transport.write(data)
        elif data.startswith(b"GET /ws"):
            self.in_tunnel = True
            self.transport.write(SWITCH)
        elif data.startswith(b"GET /break"):
            self.transport.write(ANSWER[:-2])
            self.transport.close()
        elif data.startswith(b"GET /die"):
            self.transport.abort()
        elif not data.startswith(b"GET /silent"):
            self.transport.write(ANSWER)


class Pipeline(asyncio.Protocol):
    """Client that sends the same pipelined requests several times."""

    def __init__(self, data: bytes, rounds: int) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._data = data * PIPELINED
        self._rounds = rounds
        self._left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        self._left -= len(data)
        if not self._left:
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("the gateway closed the connection"))

    def _send(self) -> None:
        if not self._rounds:
            self.done.set_result(None)
            self.transport.close()
            return
        self._rounds -= 1
        self._left = len(OWN_POLICY + ANSWER) * PIPELINED
        self.transport.write(self._data)


async def send_requests(gateway: GatewayProcess, count: int) -> None:
    loop = asyncio.get_running_loop()
    rounds = count // CONNECTIONS // PIPELINED
    connections = [
        await loop.create_connection(
            lambda: Pipeline(request(gateway, "/a"), rounds), "127.0.0.1", gateway.port
        )
        for _ in range(CONNECTIONS)
    ]
    await asyncio.gather(*(pipeline.done for _, pipeline in connections))


async def open_websockets(gateway: GatewayProcess, count: int) -> None:
    """Open WebSockets that carry one message each way and are then aborted by their client."""
    for _ in range(count // 200):
        group = ClientGroup(gateway)
        await group.connect(200, upgrade(gateway))
        assert await group.statuses() == {101}
        group.send(PING)
        await until(lambda group=group: all(each.data.endswith(PING) for each in group.clients), "echoes")
        group.abort()


async def send_failing_requests(gateway: GatewayProcess, count: int) -> None:
    """Send requests that end early in every way, and invalid ones."""
    kinds = {
        request(gateway, "/break"): {200},
        request(gateway, "/die"): {502},
        request(gateway, "/chunked", "Transfer-Encoding: chunked\r\n", "POST") + b"zz\r\n": {400},
        b"GET / HTTP/1.1\r\nHost: elsewhere\r\n\r\n": {421},
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n": {400},
        b"GET /api HTTP/1.1\r\nHost: %b\r\n\r\n" % gateway.platform.encode(): {200},
    }
    for data, expected in kinds.items():
        group = ClientGroup(gateway)
        await group.connect(count, data)
        assert await group.statuses() == expected
        group.abort()
    group = ClientGroup(gateway)
    await group.connect(count, request(gateway, "/silent"))
    group.abort()


async def resources_at_rest(gateway: GatewayProcess) -> dict[str, Any]:
    """Return the resources once no connection is open and the last timers have run."""

    async def read_resources() -> dict[str, Any]:
        await gateway.send_command("STANDBY")
        await gateway.send_command("RUNNING")
        return await gateway.resources()

    def is_at_rest(found: dict[str, Any]) -> bool:
        tables, timers = found["tables"], found["objects"].get("uvloop.loop.TimerHandle", 0)
        return (
            not any(tables[name] for name in TRANSIENT) and tables["tasks of the server"] == 1 and timers < 5
        )

    return await eventually(
        read_resources, "all connections and timers of the gateway to end", is_at_rest, every=0.5
    )


async def test_requests_and_upgrades_leak_no_resources(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(Workspace, str(tmp_path / "ide.sock"), backlog=4096)
    async with gateway_process(upstream=f"unix:{tmp_path / 'ide.sock'}") as gateway:
        await send_requests(gateway, REQUESTS // 20)
        await send_failing_requests(gateway, 100)
        await open_websockets(gateway, WAVE)
        before, memory = await resources_at_rest(gateway), gateway.resident()

        await send_requests(gateway, REQUESTS)
        await send_failing_requests(gateway, 300)
        for _ in range(UPGRADES // WAVE):
            await open_websockets(gateway, WAVE)
            after = await resources_at_rest(gateway)

        assert Counter(after["tables"]) <= Counter(before["tables"])
        assert after["tasks"] == before["tasks"]
        assert after["descriptors"] <= before["descriptors"]
        more = Counter(after["objects"]) - Counter(before["objects"])
        # An abstract class and its subclasses cache each new type with a set, two weak references
        # and a function. A leak of requests or upgrades would be thousands of objects.
        assert all(count < 150 for count in more.values()), more.most_common(10)
        assert not [name for name in more if name.startswith("codehub.")]
        assert gateway.resident() - memory < GROWTH
    server.close()
