"""The schema version that this CodeHub needs, and checks that a database has it.

Separate from `migrate`, so that programs that only check do not load Alembic.
"""

from pathlib import Path

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

MIGRATIONS = Path(__file__).parent / "migrations"


class SchemaError(Exception):
    """Mismatch of the database's schema with this version of CodeHub."""


def known_revisions() -> list[str]:
    """Return the revisions that this version knows, oldest first, from the names of their files."""
    return sorted(path.name.partition("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*.py"))


def head_revision() -> str:
    return known_revisions()[-1]


async def read_revision(conn: AsyncConnection) -> str | None:
    """Return the database's revision, None if it is empty; raise SchemaError if it is unknown."""
    if await conn.scalar(text("SELECT to_regclass('alembic_version')")) is None:
        return None
    found: str | None = await conn.scalar(text("SELECT version_num FROM alembic_version"))
    _require_known(found)
    return found


def _require_known(found: str | None) -> None:
    if found is not None and found not in known_revisions():
        raise SchemaError(
            f"the database was made by a newer CodeHub (schema {found}, this one knows up to "
            f"{head_revision()}): install that version or a later one"
        )


async def check_schema(engine: AsyncEngine) -> None:
    """Raise SchemaError unless the database has exactly this version's schema."""
    async with engine.connect() as conn:
        found = await read_revision(conn)
    check_revision(found)


def check_revision(found: str | None) -> None:
    """Raise SchemaError unless this is exactly this version's revision."""
    _require_known(found)
    if found is None:
        raise SchemaError("the database is empty: run `codehub migrate` first")
    if found != head_revision():
        raise SchemaError(
            f"the database is at schema {found}, this CodeHub needs {head_revision()}: run `codehub migrate`"
        )
