"""What happens to coordinators and their servers. Each makes sure that it did happen."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg
from redis.asyncio import Redis
from sqlalchemy import text

from tests.chaos.coordinators import OWNER, Coordinator, Site, eventually
from tests.waiting import PATIENCE

Disturbance = Callable[[Site], Awaitable[None]]

LISTENS = "(query ILIKE 'LISTEN%' OR query = 'SELECT 1')"
SESSIONS = {
    "lock": "pid = (SELECT backend_pid FROM leadership)",
    "listener": f"pid <> (SELECT backend_pid FROM leadership) AND {LISTENS}",
    "pool": f"pid <> (SELECT backend_pid FROM leadership) AND NOT {LISTENS}",
}


async def busy(site: Site, operations: int = 2) -> None:
    """Wait until several operations are under way, so that what follows comes in between."""

    async def enough() -> bool:
        (row,) = await site.rows("SELECT count(*) AS n FROM workspaces WHERE operation <> 'NONE'")
        return int(row["n"]) >= operations

    await eventually(enough, f"{operations} operations under way", every=0.01)


async def kill_the_leader(site: Site) -> None:
    leader = await site.leader()
    leader.send(signal.SIGKILL)
    await site.another_leader(leader)
    await site.refill()


async def kill_the_standby(site: Site) -> None:
    leader = await site.leader()
    standby = await site.standby()
    standby.send(signal.SIGKILL)
    assert await site.leader() is leader
    await site.refill()


@asynccontextmanager
async def no_new_sessions(site: Site, coordinator: Coordinator) -> AsyncIterator[None]:
    """What this coordinator has open stays open, but it cannot connect anew."""
    async with site.engine.begin() as conn:
        await conn.execute(text(f"ALTER ROLE {coordinator.role} NOLOGIN"))
    try:
        yield
    finally:
        async with site.engine.begin() as conn:
            await conn.execute(text(f"ALTER ROLE {coordinator.role} LOGIN"))


@asynccontextmanager
async def statement_under_way(site: Site, coordinator: Coordinator) -> AsyncIterator[None]:
    """A fenced transaction of this coordinator that stands in the middle of a statement.

    A process may be stopped when it has sent half of one. The server takes that for a busy session, not
    for an idle one, and ends it neither by its timeouts nor by itself.
    """
    connection = await asyncpg.connect(site.url_of(coordinator.role))
    await connection.execute("BEGIN")
    await connection.fetch("SELECT epoch FROM leadership FOR SHARE")
    statement = asyncio.create_task(connection.execute("SELECT pg_sleep(3600)"))
    try:
        yield
    finally:
        connection.terminate()
        await asyncio.gather(statement, return_exceptions=True)


async def hang_the_leader(site: Site) -> None:
    """Stopped until the other leads; when it wakes up it finds that its term is over."""
    leader = await site.leader()
    async with statement_under_way(site, leader):
        await _hang(site, leader)


async def _hang(site: Site, leader: Coordinator) -> None:
    epoch = await site.epoch()

    async def gave_up() -> int:
        return leader.told("this leadership term is over", "leadership is given up", epoch=epoch)

    leader.send(signal.SIGSTOP)
    try:
        age = "SELECT extract(epoch FROM clock_timestamp() - heartbeat_at)::float8 AS seconds FROM leadership"
        (row,) = await site.rows(age)
        looked_at = time.monotonic()
        await site.another_leader(leader)
        silent = row["seconds"] + time.monotonic() - looked_at
        assert silent > 19, f"evicted although its heartbeat was fresh: {silent:.1f} s"
    finally:
        leader.send(signal.SIGCONT)
    await eventually(gave_up, f"{leader.role} to give up epoch {epoch}")


async def end_lock_session(site: Site) -> None:
    epoch = await site.epoch()
    await _terminate(site, "lock")
    await site.later_epoch(epoch)


async def end_listener_session(site: Site) -> None:
    epoch = await site.epoch()
    await _terminate(site, "listener")
    assert await site.epoch() == epoch


async def end_pool_sessions(site: Site) -> None:
    await _terminate(site, "pool")


async def _terminate(site: Site, kind: str) -> None:
    leader = await site.leader()
    query = (
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = :who AND {SESSIONS[kind]}"
    )

    async def ended() -> bool:
        return any(row["pg_terminate_backend"] for row in await site.rows(query, who=leader.role))

    await eventually(ended, f"a session of the leader to end: {kind}")


async def restart_postgres_fast(site: Site) -> None:
    await _restart_postgres(site, signal.SIGINT)


async def restart_postgres_immediate(site: Site) -> None:
    await _restart_postgres(site, signal.SIGQUIT)


async def kill_postgres(site: Site) -> None:
    await _restart_postgres(site, signal.SIGKILL)


async def _restart_postgres(site: Site, number: signal.Signals) -> None:
    epoch = await site.epoch()
    assert site.postgres.process is not None
    site.postgres.process.send_signal(number)
    await asyncio.to_thread(site.postgres.process.wait, PATIENCE)
    await site.postgres.start()
    await site.later_epoch(epoch)


async def restart_redis(site: Site) -> None:
    await asyncio.to_thread(site.redis.stop)
    await site.redis.start()
    await _hears_events(site)


async def kill_redis(site: Site) -> None:
    assert site.redis.process is not None
    site.redis.process.kill()
    await asyncio.to_thread(site.redis.process.wait, PATIENCE)
    await site.redis.start()
    await _hears_events(site)


async def flush_redis(site: Site) -> None:
    async with Redis.from_url(site.redis.url) as client:
        await client.set("something", "to lose")
        await client.flushall()
        assert await client.dbsize() == 0
    await _hears_events(site)


async def _hears_events(site: Site) -> None:
    """What happens to workspaces is published again."""
    async with Redis.from_url(site.redis.url) as client, client.pubsub() as channel:
        await channel.subscribe(f"codehub:sse:{OWNER}")

        async def heard() -> bool:
            message = await channel.get_message(ignore_subscribe_messages=True, timeout=1)
            return message is not None and b"workspace_updated" in message["data"]

        await eventually(heard, "an event from Redis")


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
