"""Bring the schema to this version, or say clearly why that cannot be."""

from collections.abc import Callable

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

from codehub.database import schema_version
from codehub.database.advisory_locks import AdvisoryLock, hold_lock
from codehub.database.engine import create_engine


def config() -> Config:
    made = Config()
    made.set_main_option("script_location", str(schema_version.MIGRATIONS))
    return made


async def upgrade(url: str, revision: str = "head") -> None:
    """Migrate up to `revision`. Safe to run from several processes at once."""
    engine = create_engine(url)
    try:
        async with engine.begin() as conn:
            await hold_lock(conn, AdvisoryLock.MIGRATION)
            await schema_version.found_in(conn)
            await conn.run_sync(_run, lambda made: command.upgrade(made, revision))
    finally:
        await engine.dispose()


async def downgrade(url: str, revision: str) -> None:
    engine = create_engine(url)
    try:
        async with engine.begin() as conn:
            await hold_lock(conn, AdvisoryLock.MIGRATION)
            await conn.run_sync(_run, lambda made: command.downgrade(made, revision))
    finally:
        await engine.dispose()


def _run(connection: Connection, action: Callable[[Config], None]) -> None:
    made = config()
    made.attributes["connection"] = connection
    action(made)
