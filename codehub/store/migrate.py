"""Bring the schema to this version, or say clearly why that cannot be."""

from collections.abc import Callable
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.store.engine import create_engine
from codehub.store.locks import AdvisoryLock, hold_lock


class SchemaError(Exception):
    """The database's schema does not fit this version of CodeHub."""


def config() -> Config:
    made = Config()
    made.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return made


def head() -> str:
    revision = ScriptDirectory.from_config(config()).get_current_head()
    if revision is None:
        raise SchemaError("this build of CodeHub carries no migrations")
    return revision


async def upgrade(url: str, revision: str = "head") -> None:
    """Migrate up to `revision`. Safe to run from several processes at once."""
    engine = create_engine(url)
    try:
        async with engine.begin() as conn:
            await hold_lock(conn, AdvisoryLock.MIGRATION)
            await conn.run_sync(_refuse_newer)
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


async def check(engine: AsyncEngine) -> None:
    """Raise SchemaError unless the database is at exactly this version."""
    async with engine.connect() as conn:
        found = await conn.run_sync(_refuse_newer)
    if found is None:
        raise SchemaError("the database is empty: run `codehub migrate` first")
    if found != head():
        raise SchemaError(
            f"the database is at schema {found}, this CodeHub needs {head()}: run `codehub migrate`"
        )


def _refuse_newer(connection: Connection) -> str | None:
    """The database's revision, unless this CodeHub does not know it."""
    found = MigrationContext.configure(connection).get_current_revision()
    known = {script.revision for script in ScriptDirectory.from_config(config()).walk_revisions()}
    if found is not None and found not in known:
        raise SchemaError(
            f"the database was made by a newer CodeHub (schema {found}, this one knows up to {head()}): "
            "install that version or a later one"
        )
    return found


def _run(connection: Connection, action: Callable[[Config], None]) -> None:
    made = config()
    made.attributes["connection"] = connection
    action(made)
