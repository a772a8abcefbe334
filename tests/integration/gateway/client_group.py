"""Thousands of raw clients, which use little processor time beside the gateway."""

import asyncio
from typing import cast

from codehub.domain.cookie_names import HOST_PREFIX
from codehub.gateway.cookies import CookieGrant, sign
from tests.integration.gateway.gateway_process import FAR_FUTURE, GatewayProcess
from tests.integration.gateway.harness import KEY, MINE, SESSION, session_hash
from tests.waiting import until

MAX_CONNECTING = 200


def request(gateway: GatewayProcess, target: str = "/", more: str = "", method: str = "GET") -> bytes:
    cookie = sign(KEY, CookieGrant(session_hash(SESSION), int(FAR_FUTURE)), MINE, gateway.host)
    prefix = HOST_PREFIX if gateway.is_secure else ""
    start = f"{method} {target} HTTP/1.1\r\nHost: {gateway.host}\r\n"
    return f"{start}Cookie: {prefix}codehub-workspace={cookie}\r\n{more}\r\n".encode()


def upgrade(gateway: GatewayProcess, target: str = "/ws") -> bytes:
    key = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    return request(gateway, target, f"Connection: Upgrade\r\nUpgrade: websocket\r\n{key}")


class GroupClient(asyncio.Protocol):
    """One client, with all data that it received, and whether the connection is closed."""

    def __init__(self, first: bytes) -> None:
        self.data = b""
        self.is_closed = False
        self._first = first

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._first)

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True

    @property
    def has_response(self) -> bool:
        return b"\r\n\r\n" in self.data

    async def status(self) -> int:
        await until(lambda: self.has_response, "a response")
        return int(self.data[9:12])


class ClientGroup:
    """Clients that send the same data to one gateway."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.clients: list[GroupClient] = []
        self._port = gateway.port
        self._slots = asyncio.Semaphore(MAX_CONNECTING)

    async def connect(self, count: int, first: bytes) -> list[GroupClient]:
        """Open this many more connections, a few hundred at a time. Each sends `first`."""
        self.clients += await asyncio.gather(*(self._connect_one(first) for _ in range(count)))
        return self.clients

    async def _connect_one(self, first: bytes) -> GroupClient:
        async with self._slots:
            loop = asyncio.get_running_loop()
            return (await loop.create_connection(lambda: GroupClient(first), "127.0.0.1", self._port))[1]

    def send(self, data: bytes) -> None:
        for client in self.clients:
            client.transport.write(data)

    def abort(self) -> None:
        for client in self.clients:
            client.transport.abort()

    async def statuses(self) -> set[int]:
        await until(lambda: all(client.has_response for client in self.clients), "a response for each client")
        return {int(client.data[9:12]) for client in self.clients}

    async def wait_closed(self) -> None:
        """Wait until the gateway has closed every connection."""
        await until(lambda: all(client.is_closed for client in self.clients), "the end of every connection")
