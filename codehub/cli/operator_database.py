"""Connection of a command to the database."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.cli.errors import CommandError
from codehub.cli.requirements import require_database
from codehub.database.engine import create_engine
from codehub.embedded import postgres
from codehub.settings import Settings

T = TypeVar("T")


def database_url(settings: Settings) -> str:
    """Return DATABASE_URL, or the URL of the embedded database of the data directory."""
    url = settings.database_url or postgres.url_of(settings.data_dir)
    if url is None:
        raise CommandError(
            f"there is no database: DATABASE_URL is not set, and {settings.data_dir} holds none "
            "(choose another directory with --data-dir, or run `codehub up` first)"
        )
    return url


@contextlib.asynccontextmanager
async def connected(settings: Settings) -> AsyncIterator[AsyncEngine]:
    url = database_url(settings)
    await require_database(url)
    engine = create_engine(url)
    try:
        yield engine
    finally:
        await engine.dispose()


def with_engine(settings: Settings, work: Callable[[AsyncEngine], Coroutine[Any, Any, T]]) -> T:
    """Run asynchronous work with a connected engine, and return its result."""

    async def run() -> T:
        async with connected(settings) as engine:
            return await work(engine)

    return asyncio.run(run())
