"""Connections to upstreams (the API, the workspaces), kept alive between requests."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, cast

from codehub.domain.ports import network_of
from codehub.gateway.http1.turn_queue import COSTLY_A_TICK, WINDOW, TurnQueue
from codehub.gateway.port_connect import connect_through

MAX_IDLE_PER_UPSTREAM: Final = 64
IDLE_SECONDS: Final = 30.0
BUSY_SECONDS: Final = 0.02
ARRIVALS: Final = 256 << 10
COPIED: Final = 16 << 10
"""Up to so many bytes a copy is cheaper than the care that passing on without one takes."""


class UpstreamUser(Protocol):
    """What is done with a connection right now: an exchange, or a tunnel."""

    def upstream_data(self, data: memoryview) -> int:
        """Take data, which is valid during this call only.

        Return the number of bytes at its end that are left for another turn.
        """

    def upstream_lost(self, error: Exception | None) -> None: ...

    def upstream_writable(self, writable: bool) -> None: ...


class UpstreamConnection(asyncio.BufferedProtocol):
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
        """The client takes no more at present."""
        self._rest = b""
        """What came in and waits for its turn, from `_position` on. Nothing is read meanwhile."""
        self._position = 0
        self._is_waiting = False
        self._lost_by: list[Exception | None] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.pool.arrivals

    def buffer_updated(self, nbytes: int) -> None:
        data = self.pool.arrivals[:nbytes]
        if self.user is None:
            self.transport.abort()  # an answer that nobody asked for must not become the next one's
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
        """Whether more came in than the user has been given."""
        return self._position < len(self._rest)

    def hold(self, hold: bool) -> None:
        """Pass on nothing more, or go on."""
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
            return  # it ended with what it was given
        self._rest, self._position = bytes(data), 0
        if not self._held and not self.transport.is_closing():
            self.transport.pause_reading()
        self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            self.pool.turns.add(self.address, self._go_on)

    def _go_on(self) -> None:
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
            self._read_on()

    def _read_on(self) -> None:
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
        """End the use of this connection. Another one may follow."""
        self.user = None
        self.hold(False)

    def abort(self) -> None:
        self.user = None
        self.transport.abort()

    def close(self, within: float) -> None:
        """Close when what was written has been sent, and in so many seconds whether it has or not."""
        self.user = None
        self.transport.close()
        self._ending = asyncio.get_running_loop().call_later(within, self.transport.abort)


async def _connect_unix(
    loop: asyncio.AbstractEventLoop, make: Callable[[], UpstreamConnection], path: str
) -> UpstreamConnection:
    """A Unix socket whose queue is full refuses at once, where TCP would wait: so we wait."""
    while True:
        try:
            return (await loop.create_unix_connection(make, path))[1]
        except BlockingIOError:
            await asyncio.sleep(BUSY_SECONDS)


class Pool:
    """Idle connections by address, the latest used first."""

    def __init__(self, connect_timeout: float, turns: TurnQueue) -> None:
        self.turns = turns
        self._costly: dict[str, int] = {}
        """Costly callbacks by address; half of them are forgotten with each tick."""
        self._idle: dict[str, list[UpstreamConnection]] = {}
        self._connect_timeout = connect_timeout
        self.arrivals: memoryview
        """Where all upstreams' data comes in: each piece is passed on before the next is read."""
        self.renew_arrivals()

    def renew_arrivals(self) -> None:
        """Grant the last piece to a transport that has not sent all of it: what is read next is another's."""
        self.arrivals = memoryview(bytearray(ARRIVALS))

    def charge(self, address: str) -> None:
        self._costly[address] = self._costly.get(address, 0) + 1

    def is_spent(self, address: str) -> bool:
        """Whether this upstream has cost so much in this tick that all it sends waits for its turn."""
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
        """A new connection; OSError or TimeoutError when there is none to be had."""
        loop = asyncio.get_running_loop()
        kind, _, where = address.partition(":")

        def make() -> UpstreamConnection:
            return UpstreamConnection(address, self)

        async with asyncio.timeout(self._connect_timeout):
            if kind == "unix":
                return await _connect_unix(loop, make, where)
            host, _, port = where.rpartition(":")
            if kind == "broker":
                made = await connect_through(host, int(port))
                return (await loop.create_connection(make, sock=made))[1]
            return (await loop.create_connection(make, host.strip("[]"), int(port)))[1]

    def remove(self, connection: UpstreamConnection) -> None:
        waiting = self._idle.get(connection.address)
        if waiting and connection in waiting:
            waiting.remove(connection)

    def drop(self, address: str) -> None:
        """Nothing that was connected to this address, or to a port beside it, is used again."""
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
