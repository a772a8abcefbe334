"""After many requests and upgrades, the gateway holds what it held before."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.integration.gateway.crowd import Crowd, request, upgrade
from tests.integration.gateway.harness import OWN_POLICY
from tests.integration.gateway.standalone import Standalone, many_descriptors, standalone
from tests.selection import EVERYTHING
from tests.waiting import eventually, until

REQUESTS = 100_000 if EVERYTHING else 10_000
UPGRADES = 10_000 if EVERYTHING else 800
A_WAVE = UPGRADES // 2
"""Upgrades between two rests: memory grows with how many end at a time, and the waves are equal."""
CONNECTIONS = 50
IN_A_ROW = 50
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
PING = b"\x81\x84\x00\x00\x00\x00ping"
GROWTH = 4 << 20
"""Bytes that the allocator may keep for itself; a hundred that each request leaves would be ten million."""
FLEETING = ("connections", "idle upstreams", "lookups", "checks", "routes")
"""Tables that empty by themselves. A push that finds somebody connected looks the route up again, the next
one, when nobody is, only forgets it."""


@pytest.fixture(autouse=True)
def roomy() -> Iterator[None]:
    with many_descriptors():
        yield


class Workspace(asyncio.Protocol):
    """Answers, echoes, and breaks off where it is asked to."""

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
    """Asks for the same a number of times in a row, again and again."""

    def __init__(self, data: bytes, rounds: int) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._data = data * IN_A_ROW
        self._rounds = rounds
        self._left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._left -= len(data)
        if not self._left:
            self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("the gateway ended it"))

    def _ask(self) -> None:
        if not self._rounds:
            self.done.set_result(None)
            self.transport.close()
            return
        self._rounds -= 1
        self._left = len(OWN_POLICY + ANSWER) * IN_A_ROW
        self.transport.write(self._data)


async def many_requests(gateway: Standalone, count: int) -> None:
    loop = asyncio.get_running_loop()
    rounds = count // CONNECTIONS // IN_A_ROW
    asked = [
        await loop.create_connection(
            lambda: Pipeline(request(gateway, "/a"), rounds), "127.0.0.1", gateway.port
        )
        for _ in range(CONNECTIONS)
    ]
    await asyncio.gather(*(pipeline.done for _, pipeline in asked))


async def many_upgrades(gateway: Standalone, count: int) -> None:
    """Each carries a message there and back, and is then given up by its client."""
    for _ in range(count // 200):
        crowd = Crowd(gateway)
        await crowd.come(200, upgrade(gateway))
        assert await crowd.statuses() == {101}
        crowd.say(PING)
        await until(lambda crowd=crowd: all(each.data.endswith(PING) for each in crowd.members), "echoes")
        crowd.leave()


async def much_trouble(gateway: Standalone, count: int) -> None:
    """Everything that can end a request early, and what is not one."""
    kinds = {
        request(gateway, "/break"): {200},
        request(gateway, "/die"): {502},
        request(gateway, "/chunked", "Transfer-Encoding: chunked\r\n", "POST") + b"zz\r\n": {400},
        b"GET / HTTP/1.1\r\nHost: elsewhere\r\n\r\n": {421},
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n": {400},
        b"GET /api HTTP/1.1\r\nHost: %b\r\n\r\n" % gateway.platform.encode(): {200},
    }
    for data, expected in kinds.items():
        crowd = Crowd(gateway)
        await crowd.come(count, data)
        assert await crowd.statuses() == expected
        crowd.leave()
    crowd = Crowd(gateway)
    await crowd.come(count, request(gateway, "/silent"))
    crowd.leave()


async def at_rest(gateway: Standalone) -> dict[str, Any]:
    """What it holds once nobody is connected, upstreams are let go, and the last timers have run."""

    async def census() -> dict[str, Any]:
        await gateway.tell("STANDBY")
        await gateway.tell("RUNNING")
        return await gateway.census()

    def is_at_rest(found: dict[str, Any]) -> bool:
        tables, timers = found["tables"], found["objects"].get("uvloop.loop.TimerHandle", 0)
        return not any(tables[name] for name in FLEETING) and tables["tasks of it"] == 1 and timers < 5

    return await eventually(census, "the gateway to come to rest", is_at_rest, every=0.5)


async def test_nothing_is_left_behind(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(Workspace, str(tmp_path / "ide.sock"), backlog=4096)
    async with standalone(upstream=f"unix:{tmp_path / 'ide.sock'}") as gateway:
        await many_requests(gateway, REQUESTS // 20)
        await much_trouble(gateway, 100)
        await many_upgrades(gateway, A_WAVE)
        before, memory = await at_rest(gateway), gateway.resident()

        await many_requests(gateway, REQUESTS)
        await much_trouble(gateway, 300)
        for _ in range(UPGRADES // A_WAVE):
            await many_upgrades(gateway, A_WAVE)
            after = await at_rest(gateway)

        assert Counter(after["tables"]) <= Counter(before["tables"])
        assert after["tasks"] == before["tasks"]
        assert after["descriptors"] <= before["descriptors"]
        more = Counter(after["objects"]) - Counter(before["objects"])
        # An abstract class that meets a type for the first time remembers it, as do its subclasses, with a
        # set, two weak references and a function each. What requests or upgrades leave would be thousands.
        assert all(count < 150 for count in more.values()), more.most_common(10)
        assert not [name for name in more if name.startswith("codehub.")]
        assert gateway.resident() - memory < GROWTH
    server.close()
