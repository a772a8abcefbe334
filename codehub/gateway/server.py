"""One gateway worker: the public port, and the tasks that run beside it."""

import asyncio
import contextlib
import math
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

import structlog
from redis.asyncio import BlockingConnectionPool, Redis

from codehub.bus import tickets
from codehub.bus.activity import ActivityLog
from codehub.bus.tickets import Ticket
from codehub.database import gateway_queries
from codehub.database.engine import STATEMENT_SECONDS, create_engine
from codehub.database.gateway_reports import GatewayRegistry
from codehub.gateway.activity import ActivityRecorder
from codehub.gateway.activity_reporter import ActivityReporter
from codehub.gateway.address_limits import AddressShare, AddressShares
from codehub.gateway.certificate import RenewedCertificate
from codehub.gateway.config import GatewayConfig
from codehub.gateway.http1 import reply
from codehub.gateway.http1.client_connection import ClientConnection
from codehub.gateway.http1.interfaces import ManagedConnection
from codehub.gateway.http1.reply import Reply
from codehub.gateway.http1.turn_queue import TurnQueue
from codehub.gateway.http1.upstream import Pool
from codehub.gateway.invalidation_listener import InvalidationListener
from codehub.gateway.metrics import GatewayMetrics, WorkerMetrics
from codehub.gateway.open_connections import OpenConnections
from codehub.gateway.pages import Pages
from codehub.gateway.postgres_source import PostgresSource
from codehub.gateway.revocation import RevocationHandler
from codehub.gateway.route_cache import RouteCache, RouteSource
from codehub.gateway.routing import Router
from codehub.gateway.tls_server import TlsServer
from codehub.gateway.workspace_entry import Tickets, WorkspaceEntry

logger = structlog.get_logger(__name__)

TICK_SECONDS: Final = 0.5
BACKLOG: Final = 1024
REDIS_SECONDS: Final = 5.0
TICKET_CONNECTIONS: Final = 16


class RedisTickets:
    """Store of tickets that expire (ADR 0022)."""

    def __init__(self, redis: Redis, seconds: int) -> None:
        self._redis = redis
        self._seconds = seconds

    async def issue(self, ticket: Ticket) -> str:
        return await tickets.issue(self._redis, ticket, self._seconds)

    async def consume(self, token: str) -> Ticket | None:
        return await tickets.consume(self._redis, token)


def redis_for_tickets(url: str) -> Redis:
    """Return a client whose calls wait for a connection. Activity has a client of its own.

    redis-py's default pool fails beyond 100 connections, and anyone can send tickets.
    """
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=TICKET_CONNECTIONS,
        timeout=REDIS_SECONDS,
        socket_timeout=REDIS_SECONDS,
        socket_connect_timeout=REDIS_SECONDS,
    )
    return Redis.from_pool(pool)


class Gateway:
    """What the connections of one worker share."""

    def __init__(
        self,
        config: GatewayConfig,
        source: RouteSource,
        ticket_store: Tickets,
        cookie_key: bytes,
        metrics: WorkerMetrics | None = None,
    ) -> None:
        origins = config.origins
        self.metrics = metrics or GatewayMetrics(1).of_worker(0)
        self.config = config
        self.timeouts = config.timeouts
        self.turns = TurnQueue()
        self.addresses = AddressShares(config.connection_share, config.trusted_proxies)
        self.handshakes = AddressShares(config.connection_share, config.trusted_proxies)
        self.pool = Pool(config.timeouts.connect, self.turns)
        self.open_connections = OpenConnections()
        self.route_cache = RouteCache(source)
        self.revocation = RevocationHandler(self.route_cache, self.open_connections, self.pool.drop)
        self.recorder = ActivityRecorder()
        pages = Pages(origins)
        entry = WorkspaceEntry(origins, self.route_cache, ticket_store, pages, cookie_key)
        self.router = Router(config, self.route_cache, self.recorder, entry, pages, cookie_key)
        self.certificate = None if config.tls is None else RenewedCertificate(config.tls)
        self.draining = False
        self.now = 0.0
        """The loop's time to within a tick: exact enough for deadlines, and free on the hot path."""
        self.port = 0
        self._empty = asyncio.Event()
        self._connections: set[ManagedConnection] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    @asynccontextmanager
    async def listening(self, bound: socket.socket | None = None) -> AsyncIterator[None]:
        """Serve the public port. At the end, drain and close."""
        loop = asyncio.get_running_loop()
        self.now = loop.time()
        listener = bound or bind(self.config.host, self.config.port)
        self.port = listener.getsockname()[1]
        server = await self._open(listener)
        ticking = self.start(self._tick())
        try:
            yield
        finally:
            queued = [] if self.certificate else _accept_queued(listener)
            server.close()
            for connection in queued:
                await loop.connect_accepted_socket(lambda: ClientConnection(self), connection)
            await self._drain()
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)
            await self.revocation.close()
            self.pool.close()

    async def _open(self, listener: socket.socket) -> asyncio.AbstractServer | TlsServer:
        if self.certificate is None:
            loop = asyncio.get_running_loop()
            return await loop.create_server(lambda: ClientConnection(self), sock=listener, backlog=BACKLOG)
        server = TlsServer(
            listener,
            self.certificate,
            lambda: ClientConnection(self),
            self.start,
            handshake_timeout=self.timeouts.head,
            max_pending=self.config.max_connections,
            addresses=self.handshakes,
        )
        server.open(BACKLOG)
        return server

    def admit(self, connection: ManagedConnection, share: AddressShare) -> Reply | None:
        """Register a connection, and return the refusal if there are too many."""
        self.metrics.count_connection()
        self._connections.add(connection)
        if len(self._connections) > self.config.max_connections:
            return _too_many(503, "Too many connections.")
        if share.is_exceeded:
            return _too_many(429, "Too many connections from your network.")
        return None

    def forget(self, connection: ManagedConnection) -> None:
        self.metrics.count_disconnection()
        self._connections.discard(connection)
        if self.draining and not self._connections:
            self._empty.set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a task of the gateway failed", exc_info=error)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self.now = loop.time()
            for connection in [item for item in self._connections if item.deadline <= self.now]:
                connection.deadline = math.inf
                connection.expire()
            self.addresses.start_tick()
            self.handshakes.start_tick()
            self.pool.start_tick()
            self.pool.expire(self.now)
            if self.certificate is not None:
                self.certificate.refresh()
            await asyncio.sleep(TICK_SECONDS)

    async def _drain(self) -> None:
        """Finish the requests in progress, within a time limit."""
        self.draining = True
        for connection in list(self._connections):
            connection.drain()
        if not self._connections:
            self._empty.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), self.timeouts.drain)
        for connection in list(self._connections):
            connection.abort()


def _too_many(status: int, message: str) -> Reply:
    return reply.error(status, "TOO_MANY_REQUESTS", message, close=True, retry_after=5)


def bind(host: str, port: int) -> socket.socket:
    """Return a socket for the public port, which other workers may bind as well."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.setblocking(False)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def _accept_queued(listener: socket.socket) -> list[socket.socket]:
    """Accept the connections in the kernel's queue: closing the port would reset them."""
    queued = []
    for _ in range(BACKLOG):
        try:
            queued.append(listener.accept()[0])
        except OSError:  # the queue is empty, or no descriptor is left
            break
    return queued


async def run_gateway_worker(
    config: GatewayConfig,
    *,
    stop: asyncio.Event,
    ready: Callable[[], None],
    metrics: WorkerMetrics | None = None,
) -> None:
    """Run one worker until `stop`, and call `ready` once the port answers."""
    counts = metrics or GatewayMetrics(1).of_worker(0)
    engine = create_engine(config.database_url, statement_seconds=STATEMENT_SECONDS)
    redis: Redis = Redis.from_url(
        config.redis_url, socket_timeout=REDIS_SECONDS, socket_connect_timeout=REDIS_SECONDS
    )
    ticket_redis = redis_for_tickets(config.redis_url)
    try:
        cookie_key = await gateway_queries.read_cookie_key(config.database_url)
        source = PostgresSource(engine, config.limits, counts.count_wake)
        ticket_store = RedisTickets(ticket_redis, config.timeouts.ticket)
        gateway = Gateway(config, source, ticket_store, cookie_key, counts)
        channel = InvalidationListener(config.database_url, gateway.revocation)
        reporter = ActivityReporter(
            gateway.recorder, ActivityLog(redis), GatewayRegistry(config.database_url)
        )
        # Bind first: the coordinator would wait for a worker that is registered and has no port (ADR 0018).
        with bind(config.host, config.port) as listener:
            await reporter.begin()
            reporting = reporter.run(config.activity_flush_interval)
            try:
                async with _run_alongside(channel.run(), reporting), gateway.listening(listener):
                    ready()
                    await stop.wait()
            finally:
                await reporter.end()
    finally:
        await ticket_redis.aclose()
        await redis.aclose()
        await engine.dispose()


@asynccontextmanager
async def _run_alongside(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run endless tasks alongside the body. If any of them fails, the worker fails."""
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(item) for item in work]
        yield
        for task in running:
            task.cancel()
