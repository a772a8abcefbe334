"""A cancellation that a library has swallowed is not lost."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from unittest.mock import MagicMock

import asyncpg
import pytest
from redis.exceptions import RedisError

from codehub.asgi.credential_revocation import CredentialRevocations
from codehub.bus.events import Subscriptions
from codehub.bus.known_networks import KnownNetworks
from codehub.coordinator.event_listener import EventListener
from codehub.database.engine import create_engine
from codehub.gateway.activity import ActivityRecorder
from codehub.gateway.activity_reporter import ActivityReporter
from codehub.gateway.invalidation_listener import InvalidationListener
from codehub.host.cancellation import raise_if_cancelled
from tests.waiting import PATIENCE

NO_DATABASE = "postgresql+asyncpg:///none"


class Swallowing:
    """Library call that swallows a cancellation, and then returns or raises its own error."""

    def __init__(self, error: Exception | None = None) -> None:
        self.called = asyncio.Event()
        self._error = error

    async def __call__(self, *_: object, **__: object) -> Any:
        try:
            self.called.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if self._error is not None:
                raise self._error from None
        return []


class SwallowingRedis:
    def __init__(self, call: Swallowing) -> None:
        self.zrange = self.flush = call

    def pubsub(self) -> Any:
        return self

    async def __aenter__(self) -> Any:
        await self.zrange()
        raise RedisError

    async def __aexit__(self, *_: object) -> None: ...


class GatewayRegistry:
    async def register(self, gateway_id: str) -> None: ...
    async def report(self, *_: object, **__: object) -> int:
        return 0


async def loop(call: Swallowing) -> None:
    while True:
        try:
            await call()
        except OSError:
            raise_if_cancelled()
        raise_if_cancelled()


LOOPS: dict[str, Callable[[Swallowing], Coroutine[Any, Any, None]]] = {
    "a plain loop": loop,
    "known networks": lambda call: KnownNetworks(SwallowingRedis(call)).run(),  # type: ignore[arg-type]
    "event hints": lambda call: Subscriptions(SwallowingRedis(call), "events:").run(),  # type: ignore[arg-type]
    "flushes": lambda call: ActivityReporter(
        ActivityRecorder(), SwallowingRedis(call), GatewayRegistry()
    ).run(0),
    "ended credentials": lambda _: CredentialRevocations(NO_DATABASE, create_engine(NO_DATABASE)).run(),
    "routes": lambda _: InvalidationListener(NO_DATABASE, MagicMock()).run(),
    "workspace events": lambda _: EventListener(
        NO_DATABASE, MagicMock(), sse_prefix="events:", hint=MagicMock(), resync=MagicMock()
    ).run(),
}


@pytest.mark.parametrize("error", [None, ConnectionResetError()], ids=["returns", "raises"])
@pytest.mark.parametrize("make", LOOPS.values(), ids=LOOPS.keys())
async def test_a_loop_ends_although_a_library_swallowed_its_cancellation(
    make: Callable[[Swallowing], Coroutine[Any, Any, None]],
    error: Exception | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = Swallowing(error or asyncpg.InterfaceError("no connection") if make in DATABASE else error)
    monkeypatch.setattr(asyncpg, "connect", call)
    task = asyncio.create_task(make(call))
    async with asyncio.timeout(PATIENCE):
        await call.called.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


DATABASE = (LOOPS["ended credentials"], LOOPS["routes"], LOOPS["workspace events"])


async def test_a_timeout_is_not_a_cancellation() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await asyncio.Event().wait()
    raise_if_cancelled()
