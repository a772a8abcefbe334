"""Schema migrations with Alembic."""

from collections.abc import Callable

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

from codehub.database import schema_version
from codehub.database.advisory_locks import AdvisoryLock, hold_lock
from codehub.database.engine import create_engine


def make_config() -> Config:
    result = Config()
    result.set_main_option("script_location", str(schema_version.MIGRATIONS))
    return result


async def upgrade(url: str, revision: str = "head") -> None:
    """Migrate up to `revision`, or raise SchemaError. Several processes may run this at once."""
    engine = create_engine(url)
    try:
        async with engine.begin() as conn:
            await hold_lock(conn, AdvisoryLock.MIGRATION)
            await schema_version.read_revision(conn)
            await conn.run_sync(_run_alembic, lambda config: command.upgrade(config, revision))
    finally:
        await engine.dispose()


async def downgrade(url: str, revision: str) -> None:
    engine = create_engine(url)
    try:
        async with engine.begin() as conn:
            await hold_lock(conn, AdvisoryLock.MIGRATION)
            await conn.run_sync(_run_alembic, lambda config: command.downgrade(config, revision))
    finally:
        await engine.dispose()


def _run_alembic(connection: Connection, action: Callable[[Config], None]) -> None:
    config = make_config()
    config.attributes["connection"] = connection
    action(config)
