"""Disturbances of coordinators and their servers, each of which waits until it has taken effect."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg
from redis.asyncio import Redis
from sqlalchemy import text

from tests.chaos.coordinators import OWNER, Coordinator, CoordinatorInstallation, eventually
from tests.waiting import PATIENCE

Disturbance = Callable[[CoordinatorInstallation], Awaitable[None]]

LISTENS = "(query ILIKE 'LISTEN%' OR query = 'SELECT 1')"
SESSIONS = {
    "lock": "pid = (SELECT backend_pid FROM leadership)",
    "listener": f"pid <> (SELECT backend_pid FROM leadership) AND {LISTENS}",
    "pool": f"pid <> (SELECT backend_pid FROM leadership) AND NOT {LISTENS}",
}


async def wait_until_busy(installation: CoordinatorInstallation, operations: int = 2) -> None:
    """Wait until several operations are under way, so that a disturbance interrupts them."""

    async def enough() -> bool:
        (row,) = await installation.rows("SELECT count(*) AS n FROM workspaces WHERE operation <> 'NONE'")
        return int(row["n"]) >= operations

    await eventually(enough, f"{operations} operations under way", every=0.01)


async def kill_the_leader(installation: CoordinatorInstallation) -> None:
    leader = await installation.leader()
    leader.send(signal.SIGKILL)
    await installation.another_leader(leader)
    await installation.start_missing()


async def kill_the_standby(installation: CoordinatorInstallation) -> None:
    leader = await installation.leader()
    standby = await installation.standby()
    standby.send(signal.SIGKILL)
    assert await installation.leader() is leader
    await installation.start_missing()


@asynccontextmanager
async def no_new_sessions(
    installation: CoordinatorInstallation, coordinator: Coordinator
) -> AsyncIterator[None]:
    """Reject new connections of this coordinator; open ones stay open."""
    async with installation.engine.begin() as conn:
        await conn.execute(text(f"ALTER ROLE {coordinator.role} NOLOGIN"))
    try:
        yield
    finally:
        async with installation.engine.begin() as conn:
            await conn.execute(text(f"ALTER ROLE {coordinator.role} LOGIN"))


@asynccontextmanager
async def statement_under_way(
    installation: CoordinatorInstallation, coordinator: Coordinator
) -> AsyncIterator[None]:
    """Hold a fenced transaction of this coordinator open in the middle of a statement.

    A process may be stopped when it has sent half of a statement. PostgreSQL then counts the
    session as active, so no idle timeout ends it.
    """
    connection = await asyncpg.connect(installation.url_of(coordinator.role))
    await connection.execute("BEGIN")
    await connection.fetch("SELECT epoch FROM leadership FOR SHARE")
    statement = asyncio.create_task(connection.execute("SELECT pg_sleep(3600)"))
    try:
        yield
    finally:
        connection.terminate()
        await asyncio.gather(statement, return_exceptions=True)


async def hang_the_leader(installation: CoordinatorInstallation) -> None:
    """Stop the leader until the other one leads; it must find its term over when it resumes."""
    leader = await installation.leader()
    async with statement_under_way(installation, leader):
        await _hang(installation, leader)


async def _hang(installation: CoordinatorInstallation, leader: Coordinator) -> None:
    epoch = await installation.epoch()

    async def gave_up() -> int:
        return leader.count_logged("this leadership term is over", "leadership is given up", epoch=epoch)

    leader.send(signal.SIGSTOP)
    try:
        age = "SELECT extract(epoch FROM clock_timestamp() - heartbeat_at)::float8 AS seconds FROM leadership"
        (row,) = await installation.rows(age)
        queried_at = time.monotonic()
        await installation.another_leader(leader)
        silent = row["seconds"] + time.monotonic() - queried_at
        assert silent > 19, f"evicted although its heartbeat was fresh: {silent:.1f} s"
    finally:
        leader.send(signal.SIGCONT)
    await eventually(gave_up, f"{leader.role} to give up epoch {epoch}")


async def end_lock_session(installation: CoordinatorInstallation) -> None:
    epoch = await installation.epoch()
    await _terminate(installation, "lock")
    await installation.later_epoch(epoch)


async def end_listener_session(installation: CoordinatorInstallation) -> None:
    epoch = await installation.epoch()
    await _terminate(installation, "listener")
    assert await installation.epoch() == epoch


async def end_pool_sessions(installation: CoordinatorInstallation) -> None:
    await _terminate(installation, "pool")


async def _terminate(installation: CoordinatorInstallation, kind: str) -> None:
    leader = await installation.leader()
    query = (
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = :role AND {SESSIONS[kind]}"
    )

    async def ended() -> bool:
        return any(row["pg_terminate_backend"] for row in await installation.rows(query, role=leader.role))

    await eventually(ended, f"a session of the leader to end: {kind}")


async def restart_postgres_fast(installation: CoordinatorInstallation) -> None:
    await _restart_postgres(installation, signal.SIGINT)


async def restart_postgres_immediate(installation: CoordinatorInstallation) -> None:
    await _restart_postgres(installation, signal.SIGQUIT)


async def kill_postgres(installation: CoordinatorInstallation) -> None:
    await _restart_postgres(installation, signal.SIGKILL)


async def _restart_postgres(installation: CoordinatorInstallation, number: signal.Signals) -> None:
    epoch = await installation.epoch()
    assert installation.postgres.process is not None
    installation.postgres.process.send_signal(number)
    await asyncio.to_thread(installation.postgres.process.wait, PATIENCE)
    await installation.postgres.start()
    await installation.later_epoch(epoch)


async def restart_redis(installation: CoordinatorInstallation) -> None:
    await asyncio.to_thread(installation.redis.stop)
    await installation.redis.start()
    await _wait_for_event(installation)


async def kill_redis(installation: CoordinatorInstallation) -> None:
    assert installation.redis.process is not None
    installation.redis.process.kill()
    await asyncio.to_thread(installation.redis.process.wait, PATIENCE)
    await installation.redis.start()
    await _wait_for_event(installation)


async def flush_redis(installation: CoordinatorInstallation) -> None:
    async with Redis.from_url(installation.redis.url) as client:
        await client.set("something", "to lose")
        await client.flushall()
        assert await client.dbsize() == 0
    await _wait_for_event(installation)


async def _wait_for_event(installation: CoordinatorInstallation) -> None:
    """Wait until a change of a workspace is published again."""
    async with Redis.from_url(installation.redis.url) as client, client.pubsub() as channel:
        await channel.subscribe(f"codehub:sse:{OWNER}")

        async def received() -> bool:
            message = await channel.get_message(ignore_subscribe_messages=True, timeout=1)
            return message is not None and b"workspace_updated" in message["data"]

        await eventually(received, "an event from Redis")


EACH: tuple[Disturbance, ...] = (
    kill_the_leader,
    kill_the_standby,
    hang_the_leader,
    end_lock_session,
    end_listener_session,
    end_pool_sessions,
    restart_postgres_fast,
    kill_postgres,
    restart_redis,
    flush_redis,
)
ALL = (*EACH, restart_postgres_immediate, kill_redis)
