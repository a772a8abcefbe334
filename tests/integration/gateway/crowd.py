"""Clients by the thousand, cheap enough to leave the processor to the gateway."""

import asyncio
from typing import cast

from codehub.domain.cookie_names import HOST_PREFIX
from codehub.gateway.cookies import CookieGrant, sign
from tests.integration.gateway.harness import KEY, MINE, SESSION, hash_of
from tests.integration.gateway.standalone import FOREVER, Standalone
from tests.waiting import until

AT_ONCE = 200


def request(gateway: Standalone, target: str = "/", more: str = "", method: str = "GET") -> bytes:
    cookie = sign(KEY, CookieGrant(hash_of(SESSION), int(FOREVER)), MINE, gateway.host)
    prefix = HOST_PREFIX if gateway.is_secure else ""
    start = f"{method} {target} HTTP/1.1\r\nHost: {gateway.host}\r\n"
    return f"{start}Cookie: {prefix}codehub-workspace={cookie}\r\n{more}\r\n".encode()


def upgrade(gateway: Standalone, target: str = "/ws") -> bytes:
    key = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    return request(gateway, target, f"Connection: Upgrade\r\nUpgrade: websocket\r\n{key}")


class Member(asyncio.Protocol):
    """One client: all that it was told, and whether that was the end."""

    def __init__(self, first: bytes) -> None:
        self.data = b""
        self.is_over = False
        self._first = first

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._first)

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True

    @property
    def has_answer(self) -> bool:
        return b"\r\n\r\n" in self.data

    async def status(self) -> int:
        await until(lambda: self.has_answer, "an answer")
        return int(self.data[9:12])


class Crowd:
    def __init__(self, gateway: Standalone) -> None:
        self.members: list[Member] = []
        self._port = gateway.port
        self._room = asyncio.Semaphore(AT_ONCE)

    async def come(self, count: int, first: bytes) -> list[Member]:
        """So many more, a few hundred of them at a time, each with this to say."""
        self.members += await asyncio.gather(*(self._one(first) for _ in range(count)))
        return self.members

    async def _one(self, first: bytes) -> Member:
        async with self._room:
            loop = asyncio.get_running_loop()
            return (await loop.create_connection(lambda: Member(first), "127.0.0.1", self._port))[1]

    def say(self, data: bytes) -> None:
        for each in self.members:
            each.transport.write(data)

    def leave(self) -> None:
        for each in self.members:
            each.transport.abort()

    async def statuses(self) -> set[int]:
        await until(lambda: all(each.has_answer for each in self.members), "answers for all")
        return {int(each.data[9:12]) for each in self.members}

    async def ended(self) -> None:
        """Wait until the gateway has ended every connection."""
        await until(lambda: all(each.is_over for each in self.members), "the end of every connection")
