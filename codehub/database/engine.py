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
"""Time after which a pool closes an idle connection: each one costs the server some megabytes."""
STATEMENT_SECONDS = 15.0
"""Limit for one statement of a request, including its wait for a lock."""
CONNECTION_ERRORS = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
"""Errors of a lost asyncpg connection; InternalClientError if it is lost in mid-message."""
_SYSTEM_ERRORS = ("58", "XX")
"""Classes of errors that are not about the statement. Messages of other classes may quote user
data."""
_NO_SPACE = ("No space left on device", "Disk quota exceeded")


def engine_url(url: str) -> str:
    """Return the URL with the driver that CodeHub uses."""
    return make_url(url).set(drivername="postgresql+asyncpg").render_as_string(hide_password=False)


def create_engine(url: str, *, pool_size: int = 5, statement_seconds: float | None = None) -> AsyncEngine:
    """Return a connection pool. Its statements time out, also while they wait for a lock."""
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


async def set_statement_timeout(conn: AsyncConnection, seconds: float) -> None:
    """Limit the time of each statement of this transaction."""
    value = str(round(seconds * 1000))
    await conn.execute(text("SELECT set_config('statement_timeout', :value, true)"), {"value": value})


def is_timeout(error: DBAPIError) -> bool:
    """Return whether PostgreSQL cancelled a statement that took too long."""
    return getattr(error.orig, "sqlstate", None) == asyncpg.QueryCanceledError.sqlstate


def is_out_of_space(error: BaseException) -> bool:
    """Return whether PostgreSQL rejected a write for lack of disk space, inodes or quota."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    state = getattr(cause, "sqlstate", None) or ""
    if state == asyncpg.DiskFullError.sqlstate:
        return True
    return state.startswith(_SYSTEM_ERRORS) and any(text in str(cause) for text in _NO_SPACE)


def create_unpooled_engine(url: str) -> AsyncEngine:
    """Return an engine for rare work, which opens a connection for each use."""
    return create_async_engine(engine_url(url), poolclass=NullPool, hide_parameters=True)


def is_lock_timeout(error: DBAPIError) -> bool:
    """Return whether a statement timed out while it waited for a lock."""
    return getattr(error.orig, "sqlstate", None) == asyncpg.LockNotAvailableError.sqlstate


def asyncpg_dsn(url: str) -> str:
    """Return the URL in asyncpg's form."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


@asynccontextmanager
async def open_pool(url: str, size: int, lock_timeout: float) -> AsyncIterator[asyncpg.Pool]:
    """Open a pool of asyncpg connections for statements that leave no session state behind.

    A statement that waits for a lock longer than `lock_timeout` seconds raises
    LockNotAvailableError.
    """

    async def prepare(connection: asyncpg.Connection) -> None:
        await _set_json_codec(connection)
        # Connection poolers reject startup parameters that they do not know.
        await connection.execute(f"SET lock_timeout = {round(lock_timeout * 1000)}")

    pool = await asyncpg.create_pool(
        asyncpg_dsn(url),
        min_size=1,
        max_size=size,
        max_inactive_connection_lifetime=IDLE_SECONDS,
        init=prepare,
        reset=_skip_reset,
    )
    try:
        yield pool
    finally:
        pool.terminate()


async def _set_json_codec(connection: asyncpg.Connection) -> None:
    await connection.set_type_codec("jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)


async def _skip_reset(connection: asyncpg.Connection) -> None:
    """Do nothing: a reset would be one more round trip after each statement."""
