"""Protocols between the parts of a connection, so that none of them imports the one that owns it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from codehub.gateway.activity import ActivityRecorder, TunnelInspectors
from codehub.gateway.address_limits import AddressShare, AddressShares
from codehub.gateway.config import Timeouts
from codehub.gateway.http1.relay import Relay
from codehub.gateway.http1.reply import Reply
from codehub.gateway.http1.request_head import RequestHead
from codehub.gateway.http1.route_result import PendingRoute, RouteResult
from codehub.gateway.http1.turn_queue import TurnQueue
from codehub.gateway.http1.upstream import Pool, UpstreamConnection, UpstreamUser
from codehub.gateway.metrics import WorkerMetrics
from codehub.gateway.open_connections import OpenConnections
from codehub.gateway.route_cache import RouteCache


class RequestRouter(Protocol):
    def route(self, head: RequestHead, peer: str) -> RouteResult: ...

    async def finish_lookup(self, lookup: PendingRoute, head: RequestHead) -> RouteResult: ...

    def refuse_too_large(self, data: bytes) -> Reply | None: ...

    def unreachable(self, head: RequestHead, relay: Relay) -> Reply: ...

    def too_many_fields(self, head: RequestHead, relay: Relay) -> Reply: ...

    def unavailable(self) -> Reply: ...


class ManagedConnection(Protocol):
    """A client's connection, as its worker manages it."""

    deadline: float

    def expire(self) -> None:
        """End a connection whose deadline passed."""

    def drain(self) -> None:
        """Prepare for the end of the worker."""

    def abort(self) -> None: ...


class Worker(Protocol):
    """State that connections of one worker share."""

    addresses: AddressShares
    draining: bool
    metrics: WorkerMetrics
    now: float
    open_connections: OpenConnections
    pool: Pool
    recorder: ActivityRecorder
    route_cache: RouteCache
    timeouts: Timeouts
    turns: TurnQueue

    @property
    def router(self) -> RequestRouter: ...

    def admit(self, connection: ManagedConnection, share: AddressShare) -> Reply | None: ...

    def forget(self, connection: ManagedConnection) -> None: ...

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...


class ClientSide(Protocol):
    """A client's connection, as an exchange or a tunnel uses it."""

    gateway: Worker
    transport: asyncio.Transport
    write_paused: bool

    @property
    def request_done(self) -> bool:
        """Whether the whole request has arrived."""

    def may_stay(self, head: RequestHead) -> bool:
        """Return whether the connection may take another request after this one."""

    def send(self, head: bytes, data: memoryview) -> None:
        """Send data that is valid during this call only."""

    def hold_for_upstream(self, hold: bool) -> None:
        """Stop or resume reading, because the upstream takes no more or takes more."""

    def upstream_ready(self) -> None: ...

    def response_begun(self) -> None: ...

    def exchange_done(self, *, keep: bool) -> None: ...

    def upstream_failed(self, head: RequestHead, relay: Relay, *, too_many_fields: bool) -> None: ...

    def begin_tunnel(self, upstream: UpstreamConnection, inspectors: TunnelInspectors) -> UpstreamUser:
        """Relay bytes both ways from now on, and return the tunnel."""

    def tunnel_ended(self) -> None: ...

    def reset(self) -> None:
        """End the connection so that the client sees an incomplete response."""

    def abort(self) -> None: ...
