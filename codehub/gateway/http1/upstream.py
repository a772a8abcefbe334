"""Connections to upstreams (the API, the workspaces), kept alive between requests."""

import asyncio
from typing import Final, Protocol, cast

from codehub.domain.ports import network_of
from codehub.gateway.http1.turn_queue import COSTLY_A_TICK, WINDOW, TurnQueue
from codehub.host.full_sockets import FullSockets
from codehub.host.port_sockets import connect_through

MAX_IDLE_PER_UPSTREAM: Final = 64
IDLE_SECONDS: Final = 30.0
READ_BUFFER: Final = 128 << 10
"""A client that does not read keeps a whole one. With 64 KiB, bodies cost a third more processor time."""
COPIED: Final = 16 << 10
"""Up to this many bytes, a copy is cheaper than writing without one."""


class UpstreamUser(Protocol):
    """The current user of a connection: an exchange, or a tunnel."""

    def upstream_data(self, data: memoryview) -> int:
        """Take data, which is valid during this call only.

        Return the number of bytes at its end that are left for another turn.
        """

    def upstream_lost(self, error: Exception | None) -> None: ...

    def upstream_writable(self, writable: bool) -> None: ...


class UpstreamConnection(asyncio.BufferedProtocol):
    """A connection to an upstream, which is idle or has one user."""

    __slots__ = (
        "_ending", "_held", "_is_waiting", "_lost_by", "_position", "_rest", "address", "idle_since", "pool",
        "reused", "transport", "user",
    )  # fmt: skip

    def __init__(self, address: str, pool: "Pool") -> None:
        self.address = address
        self.pool = pool
        self.user: UpstreamUser | None = None
        self.transport: asyncio.Transport
        self.reused = False
        self.idle_since = 0.0
        self._ending: asyncio.TimerHandle | None = None
        self._held = False
        """Whether the client takes no more at present."""
        self._rest = b""
        """Data that waits for its turn, from `_position` on (ADR 0024). The socket is not read meanwhile."""
        self._position = 0
        self._is_waiting = False
        self._lost_by: list[Exception | None] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.pool.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = self.pool.read_buffer[:nbytes]
        if self.user is None:
            self.transport.abort()  # an unrequested response must not answer the next request
        elif self.pool.is_spent(self.address):
            self._keep(data)
        elif left := self.user.upstream_data(data):
            self.charge()
            self._keep(data[nbytes - left :])

    def charge(self) -> None:
        """Count one more costly callback against this upstream."""
        self.pool.charge(self.address)

    @property
    def has_rest(self) -> bool:
        """Whether more data arrived than the user has received."""
        return self._position < len(self._rest)

    def hold(self, hold: bool) -> None:
        """Pause or resume the relaying of data to the user."""
        if hold == self._held:
            return
        self._held = hold
        if self._rest:
            self._wait_for_turn()
        elif not self.transport.is_closing():
            if hold:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def _keep(self, data: memoryview) -> None:
        if self.user is None:
            return  # the data ended the use of this connection
        self._rest, self._position = bytes(data), 0
        if not self._held and not self.transport.is_closing():
            self.transport.pause_reading()
        self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            self.pool.turns.add(self.address, self._take_turn)

    def _take_turn(self) -> None:
        self._is_waiting = False
        if self.user is None or self._held or not self._rest:
            return
        window = memoryview(self._rest)[self._position : self._position + WINDOW]
        self._position += len(window)
        try:
            self._position -= self.user.upstream_data(window)
        except BaseException:
            self.transport.abort()
            raise
        if self.has_rest:
            self._wait_for_turn()
        else:
            self._rest, self._position = b"", 0
            self._resume_reading()

    def _resume_reading(self) -> None:
        if self._lost_by:
            self.connection_lost(self._lost_by.pop())
        elif not self._held and not self.transport.is_closing():
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._ending is not None:
            self._ending.cancel()
        if self.user is None:
            self.pool.remove(self)
        elif self._rest:
            self._lost_by.append(exc)
        else:
            user, self.user = self.user, None
            user.upstream_lost(exc)

    def pause_writing(self) -> None:
        if self.user is not None:
            self.user.upstream_writable(False)

    def resume_writing(self) -> None:
        if self.user is not None:
            self.user.upstream_writable(True)

    def release(self) -> None:
        """End the use of this connection. Another use may follow."""
        self.user = None
        self.hold(False)

    def abort(self) -> None:
        self.user = None
        self.transport.abort()

    def close(self, within: float) -> None:
        """Close when the output has been sent, and after `within` seconds in any case."""
        self.user = None
        self.transport.close()
        self._ending = asyncio.get_running_loop().call_later(within, self.transport.abort)


class Pool:
    """Pool of idle connections by address. The last one used is taken first."""

    def __init__(self, connect_timeout: float, turns: TurnQueue) -> None:
        self.turns = turns
        self._costly: dict[str, int] = {}
        """Costly callbacks by address. Each tick halves them."""
        self._idle: dict[str, list[UpstreamConnection]] = {}
        self._connect_timeout = connect_timeout
        self._full_sockets = FullSockets()
        self.read_buffer: memoryview
        """The buffer that all upstreams read into: each piece is relayed before the next is read.

        It stays for its bound: a client that reads nothing keeps 135 KiB, and 232 KiB if the event
        loop chooses how much to read. It also saves 2 to 6 % of the CPU for responses of 100 KB.
        """
        self.renew_read_buffer()

    def renew_read_buffer(self) -> None:
        """Leave the buffer to a transport that has not sent all of it, and read into a new one."""
        self.read_buffer = memoryview(bytearray(READ_BUFFER))

    def charge(self, address: str) -> None:
        self._costly[address] = self._costly.get(address, 0) + 1

    def is_spent(self, address: str) -> bool:
        """Return whether this upstream was so costly lately that its data waits for turns (ADR 0024)."""
        return bool(self._costly) and self._costly.get(address, 0) >= COSTLY_A_TICK

    def start_tick(self) -> None:
        self._costly = {address: costly // 2 for address, costly in self._costly.items() if costly > 1}

    def take(self, address: str) -> UpstreamConnection | None:
        waiting = self._idle.get(address)
        while waiting:
            connection = waiting.pop()
            if not connection.transport.is_closing():
                connection.reused = True
                return connection
        return None

    def put(self, connection: UpstreamConnection, now: float) -> None:
        connection.release()
        waiting = self._idle.setdefault(connection.address, [])
        if len(waiting) >= MAX_IDLE_PER_UPSTREAM or connection.transport.is_closing():
            connection.transport.close()
            return
        connection.idle_since = now
        waiting.append(connection)

    async def connect(self, address: str) -> UpstreamConnection:
        """Return a new connection. Raise OSError or TimeoutError if the upstream accepts none."""
        loop = asyncio.get_running_loop()
        kind, _, where = address.partition(":")

        def make() -> UpstreamConnection:
            return UpstreamConnection(address, self)

        async with asyncio.timeout(self._connect_timeout):
            if kind == "unix":
                connected = self._full_sockets.connect(
                    where, lambda: loop.create_unix_connection(make, where)
                )
                return (await connected)[1]
            host, _, port = where.rpartition(":")
            if kind == "broker":
                made = await connect_through(host, int(port), self._full_sockets)
                return (await loop.create_connection(make, sock=made))[1]
            return (await loop.create_connection(make, host.strip("[]"), int(port)))[1]

    def remove(self, connection: UpstreamConnection) -> None:
        waiting = self._idle.get(connection.address)
        if waiting and connection in waiting:
            waiting.remove(connection)

    def drop(self, address: str) -> None:
        """Abort the idle connections to this address, and those to ports of the same workspace."""
        network = network_of(address)
        for each in [key for key in self._idle if key == address or (network and key.startswith(network))]:
            for connection in self._idle.pop(each):
                connection.transport.abort()

    def expire(self, now: float) -> None:
        for address, waiting in list(self._idle.items()):
            for connection in [item for item in waiting if now - item.idle_since > IDLE_SECONDS]:
                waiting.remove(connection)
                connection.transport.close()
            if not waiting:
                del self._idle[address]

    def close(self) -> None:
        for address in list(self._idle):
            self.drop(address)
