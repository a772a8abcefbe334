"""Health checks in the database: the leader writes them, every part reads them."""

from collections.abc import Mapping
from dataclasses import dataclass

import asyncpg

from codehub.database.engine import asyncpg_dsn, is_out_of_space
from codehub.database.leadership import StaleLeader
from codehub.domain.health_checks import CheckName, DatedCheckResult, Heartbeat, CheckResult

REVISION = "SELECT version_num FROM alembic_version"

READ = """
    SELECT holder, extract(epoch FROM clock_timestamp() - heartbeat_at)::float8 AS silence,
        name, ok, message, extract(epoch FROM clock_timestamp() - checked_at)::float8 AS age,
        volumes_claimed_at IS NOT NULL AS volumes, archives_claimed_at IS NOT NULL AS archives
    FROM leadership LEFT JOIN health_checks ON true LEFT JOIN installation ON true
"""
"""The leader and the claims, once for each check.

Ages are the database's own, so that the clocks of machines need not agree.
"""

SAVE = """
    WITH office AS (
        SELECT FROM leadership WHERE epoch = $1 FOR SHARE
    )
    INSERT INTO health_checks (name, ok, message, checked_at)
    SELECT name, ok, message, clock_timestamp()
    FROM unnest($2::text[], $3::boolean[], $4::text[]) AS found (name, ok, message), office
    ON CONFLICT (name) DO UPDATE
    SET ok = excluded.ok, message = excluded.message, checked_at = excluded.checked_at
    RETURNING name
"""
"""Fenced by the leader's epoch: a stale leader's results make no row."""


NEEDS_SPACE = """
    BEGIN READ ONLY;
    SET LOCAL work_mem = '64kB';
    SELECT count(*) FROM generate_series(1, 5000);
    ROLLBACK
"""
"""A result larger than that memory, which PostgreSQL writes to a temporary file of some 100 kB."""


@dataclass(frozen=True)
class HealthRecord:
    """What the database records about the leader and its checks."""

    heartbeat: Heartbeat | None
    unclaimed: tuple[str, ...]
    """Of the volumes and the archive store."""
    checks: Mapping[CheckName, DatedCheckResult]


async def connect(url: str, seconds: float) -> "asyncpg.Connection[asyncpg.Record]":
    """Open a connection for one look, outside any pool; the caller terminates it."""
    return await asyncpg.connect(asyncpg_dsn(url), timeout=seconds, command_timeout=seconds)


async def read_revision(connection: "asyncpg.Connection[asyncpg.Record]") -> str | None:
    """Return the schema's revision; None in an empty database."""
    try:
        revision: str | None = await connection.fetchval(REVISION)
    except asyncpg.UndefinedTableError:
        return None
    return revision


async def has_space(connection: "asyncpg.Connection[asyncpg.Record]") -> bool:
    """Whether PostgreSQL can write to its disk. After a False the connection is of no more use."""
    try:
        await connection.execute(NEEDS_SPACE)
    except asyncpg.PostgresError as error:
        if is_out_of_space(error):
            return False
        raise
    return True


async def read(connection: "asyncpg.Connection[asyncpg.Record] | asyncpg.Pool") -> HealthRecord:
    rows = await connection.fetch(READ)
    heartbeat = (
        None if not rows or rows[0]["holder"] is None else Heartbeat(rows[0]["holder"], rows[0]["silence"])
    )
    known = {name.value for name in CheckName}
    return HealthRecord(
        heartbeat,
        tuple(name for name in ("volumes", "archives") if not rows or not rows[0][name]),
        {
            CheckName(row["name"]): DatedCheckResult(row["ok"], row["message"], row["age"])
            for row in rows
            if row["name"] in known
        },
    )


async def save(pool: asyncpg.Pool, epoch: int, checks: Mapping[CheckName, CheckResult]) -> None:
    """Replace the results of these checks; raises StaleLeader once another coordinator leads."""
    saved = await pool.fetch(
        SAVE,
        epoch,
        [name.value for name in checks],
        [verdict.ok for verdict in checks.values()],
        [verdict.message for verdict in checks.values()],
    )
    if not saved:
        raise StaleLeader
