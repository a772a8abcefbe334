"""Connections to PostgreSQL."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

IDLE_SECONDS = 30.0
"""After which a pool closes a connection that nobody uses: each one costs the server some megabytes."""
STATEMENT_SECONDS = 15.0
"""Time of one statement of a request, a wait for a lock included."""
CONNECTION_ERRORS = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
"""What a connection of asyncpg's own may raise when it is lost; the last, when it is lost in the middle."""
_SYSTEM_ERRORS = ("58", "XX")
"""Classes of errors that are not about the statement. A user's own words can stand in the others."""
_NO_SPACE = ("No space left on device", "Disk quota exceeded")


def engine_url(url: str) -> str:
    """The URL with the driver that CodeHub uses."""
    return make_url(url).set(drivername="postgresql+asyncpg").render_as_string(hide_password=False)


def create_engine(url: str, *, pool_size: int = 5, statement_seconds: float | None = None) -> AsyncEngine:
    """A pool of connections whose statements end after the given time, a wait for a lock included."""
    arguments = {}
    if statement_seconds is not None:
        arguments["server_settings"] = {"statement_timeout": str(round(statement_seconds * 1000))}
    return create_async_engine(
        engine_url(url),
        pool_size=pool_size,
        max_overflow=5,
        pool_pre_ping=True,
        connect_args=arguments,
        hide_parameters=True,
    )


async def limit_statements(conn: AsyncConnection, seconds: float) -> None:
    """Give the statements of this transaction less time than others have."""
    value = str(round(seconds * 1000))
    await conn.execute(text("SELECT set_config('statement_timeout', :value, true)"), {"value": value})


def is_timeout(error: DBAPIError) -> bool:
    """Whether PostgreSQL cancelled a statement that took too long."""
    return getattr(error.orig, "sqlstate", None) == asyncpg.QueryCanceledError.sqlstate


def is_out_of_space(error: BaseException) -> bool:
    """Whether PostgreSQL refused a write because its disk has no bytes, no inodes or no quota left."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    state = getattr(cause, "sqlstate", None) or ""
    if state == asyncpg.DiskFullError.sqlstate:
        return True
    return state.startswith(_SYSTEM_ERRORS) and any(text in str(cause) for text in _NO_SPACE)


def create_unpooled_engine(url: str) -> AsyncEngine:
    """For rare work: each use has a connection of its own, and none waits in between."""
    return create_async_engine(engine_url(url), poolclass=NullPool, hide_parameters=True)


def is_lock_timeout(error: DBAPIError) -> bool:
    """Whether a statement has given up waiting for a lock."""
    return getattr(error.orig, "sqlstate", None) == asyncpg.LockNotAvailableError.sqlstate


def asyncpg_dsn(url: str) -> str:
    """The URL as asyncpg itself wants it, for LISTEN and the leader's session."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


@asynccontextmanager
async def open_pool(url: str, size: int, lock_timeout: float) -> AsyncIterator[asyncpg.Pool]:
    """asyncpg's own connections, for single statements; nothing of one use is left for the next.

    A statement that waits for a lock longer than `lock_timeout` seconds raises LockNotAvailableError.
    """

    async def prepare(connection: asyncpg.Connection) -> None:
        await _read_json(connection)
        # Not as a startup parameter: connection poolers refuse those that they do not know.
        await connection.execute(f"SET lock_timeout = {round(lock_timeout * 1000)}")

    pool = await asyncpg.create_pool(
        asyncpg_dsn(url),
        min_size=1,
        max_size=size,
        max_inactive_connection_lifetime=IDLE_SECONDS,
        init=prepare,
        reset=_leave_as_it_is,
    )
    try:
        yield pool
    finally:
        pool.terminate()


async def _read_json(connection: asyncpg.Connection) -> None:
    await connection.set_type_codec("jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)


async def _leave_as_it_is(connection: asyncpg.Connection) -> None:
    """A reset would be one more round trip after each statement."""
