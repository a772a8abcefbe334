"""Which schema this version needs, and whether a database has it.

Apart from `migrate`, so that the parts that only ask need not load the migration tool.
"""

from pathlib import Path

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

MIGRATIONS = Path(__file__).parent / "migrations"


class SchemaError(Exception):
    """The database's schema does not fit this version of CodeHub."""


def known() -> list[str]:
    """Every revision that this version knows, oldest first: each file is named by its own."""
    return sorted(path.name.partition("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*.py"))


def head() -> str:
    return known()[-1]


async def found_in(conn: AsyncConnection) -> str | None:
    """The database's revision, unless this CodeHub does not know it; None in an empty database."""
    if await conn.scalar(text("SELECT to_regclass('alembic_version')")) is None:
        return None
    found: str | None = await conn.scalar(text("SELECT version_num FROM alembic_version"))
    _require_known(found)
    return found


def _require_known(found: str | None) -> None:
    if found is not None and found not in known():
        raise SchemaError(
            f"the database was made by a newer CodeHub (schema {found}, this one knows up to {head()}): "
            "install that version or a later one"
        )


async def check(engine: AsyncEngine) -> None:
    """Raise SchemaError unless the database is at exactly this version."""
    async with engine.connect() as conn:
        found = await found_in(conn)
    require(found)


def require(found: str | None) -> None:
    """Raise SchemaError unless this revision is exactly this version's."""
    _require_known(found)
    if found is None:
        raise SchemaError("the database is empty: run `codehub migrate` first")
    if found != head():
        raise SchemaError(
            f"the database is at schema {found}, this CodeHub needs {head()}: run `codehub migrate`"
        )
