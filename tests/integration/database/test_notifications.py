"""The notification listener survives a lost connection, and ends when it is cancelled."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import asyncpg
import pytest

from codehub.database.engine import asyncpg_dsn
from codehub.database.notifications import NotificationListener
from tests.waiting import PATIENCE, until

NAME = "listener under test"


class Subscriber:
    """A listener on two channels, with a record of everything it reported."""

    def __init__(self, database_url: str) -> None:
        self.received: list[tuple[str, str]] = []
        self.connected = 0
        self.answers = 0
        self.interruptions = 0
        self.listener = NotificationListener(
            database_url,
            ("one", "two"),
            lambda channel, payload: self.received.append((channel, payload)),
            on_connected=self._on_connected,
            on_answer=self._on_answer,
            on_interrupted=self._on_interrupted,
            probe_interval=0.05,
            longest_pause=0.2,
        )

    async def _on_connected(self) -> None:
        self.connected += 1

    def _on_answer(self) -> None:
        self.answers += 1

    def _on_interrupted(self) -> None:
        self.interruptions += 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator["asyncio.Task[None]"]:
        task = asyncio.create_task(self.listener.run())
        await until(lambda: self.connected or task.done(), "the listener to connect")
        try:
            yield task
        finally:
            await cancel(task)


async def cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()
    async with asyncio.timeout(PATIENCE):
        with suppress(asyncio.CancelledError):
            await task
    assert task.cancelled()


@pytest.fixture
async def admin(database_url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await asyncpg.connect(asyncpg_dsn(database_url))
    yield connection
    await connection.close()


@pytest.fixture
async def subscriber(database_url: str) -> Subscriber:
    return Subscriber(f"{database_url}{'&' if '?' in database_url else '?'}application_name={NAME}")


async def listener_sessions(admin: "asyncpg.Connection[asyncpg.Record]") -> int:
    return int(
        await admin.fetchval("SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", NAME)
    )


async def test_notifications_of_every_channel_arrive(
    subscriber: Subscriber, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    async with subscriber.running():
        await admin.execute("SELECT pg_notify('one', 'a'), pg_notify('two', 'b'), pg_notify('three', 'c')")
        await until(lambda: len(subscriber.received) == 2, "two notifications")
        assert subscriber.received == [("one", "a"), ("two", "b")]
        await until(lambda: subscriber.answers > 1, "the connection to be probed again and again")
    assert (subscriber.connected, subscriber.interruptions) == (1, 0)


async def test_a_killed_connection_is_replaced_and_reported(
    subscriber: Subscriber, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    async with subscriber.running():
        for connects in (2, 3):
            assert await admin.fetchval(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1",
                NAME,
            )
            await until(lambda: subscriber.connected == connects, "another connection")  # noqa: B023
            assert subscriber.interruptions == connects - 1
        await admin.execute("NOTIFY two, 'later'")
        await until(lambda: subscriber.received == [("two", "later")], "a notification")


@pytest.mark.parametrize("method", ["add_listener", "execute"])
async def test_an_internal_error_of_asyncpg_costs_one_connection(
    subscriber: Subscriber,
    admin: "asyncpg.Connection[asyncpg.Record]",
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    failures = iter([asyncpg.InternalClientError("got result for unknown protocol state 3")])
    original = getattr(asyncpg.Connection, method)

    async def fail_once(self: object, *args: object, **kwargs: object) -> object:
        for failure in failures:
            raise failure
        return await original(self, *args, **kwargs)

    monkeypatch.setattr(asyncpg.Connection, method, fail_once)
    async with subscriber.running():
        await until(lambda: subscriber.interruptions == 1, "the error")
        await until(lambda: subscriber.answers > 0, "another connection to answer")
        monkeypatch.undo()
        await admin.execute("NOTIFY one, 'later'")
        await until(lambda: subscriber.received == [("one", "later")], "a notification")


async def test_a_failed_catch_up_is_repeated_over_another_connection(
    subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = 0

    async def catch_up() -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise OSError("no answer")
        subscriber.connected += 1

    monkeypatch.setattr(subscriber.listener, "_on_connected", catch_up)
    async with subscriber.running():
        assert (attempts, subscriber.interruptions) == (2, 1)


async def test_an_unanswered_probe_replaces_the_connection(database_url: str) -> None:
    """The connection stays open, but the server does not answer the probe."""
    silent = Subscriber(database_url)
    silent.listener._timeout = 0.2

    async def hang(*_: object, timeout: float) -> None:
        async with asyncio.timeout(timeout):
            await asyncio.Event().wait()

    async with silent.running():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncpg.Connection, "execute", hang)
            await until(lambda: silent.interruptions == 1, "the probe to time out")
        await until(lambda: silent.answers, "an answer over another connection")


async def test_cancellation_closes_the_connection(
    subscriber: Subscriber, admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    async with subscriber.running():
        assert await listener_sessions(admin) == 1
    async with asyncio.timeout(PATIENCE):
        while await listener_sessions(admin):
            await asyncio.sleep(0.02)


async def test_cancellation_ends_a_listener_that_is_connecting() -> None:
    connecting = asyncio.Event()
    released = asyncio.Event()

    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connecting.set()
        await released.wait()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    subscriber = Subscriber(f"postgresql+asyncpg://nobody@127.0.0.1:{port}/none")
    task = asyncio.create_task(subscriber.listener.run())
    async with asyncio.timeout(PATIENCE):
        await connecting.wait()
    await cancel(task)
    assert subscriber.connected == 0
    released.set()
    server.close()
