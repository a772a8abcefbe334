"""Results of health checks: the leader writes them, every part reads them."""

from collections.abc import Mapping
from dataclasses import dataclass

import asyncpg

from codehub.database.engine import asyncpg_dsn, is_out_of_space
from codehub.database.leadership import StaleLeader
from codehub.domain.health_checks import CheckName, CheckResult, DatedCheckResult, Heartbeat

REVISION = "SELECT version_num FROM alembic_version"

READ = """
    SELECT holder, extract(epoch FROM clock_timestamp() - heartbeat_at)::float8 AS silence,
        name, ok, message, extract(epoch FROM clock_timestamp() - checked_at)::float8 AS age,
        volumes_claimed_at IS NOT NULL AS volumes, archives_claimed_at IS NOT NULL AS archives
    FROM leadership LEFT JOIN health_checks ON true LEFT JOIN installation ON true
"""
"""Reads the leader and the claims, in a row for each check.

Ages are from the database's clock, so that the clocks of several machines need not agree.
"""

SAVE = """
    WITH fence AS (
        SELECT FROM leadership WHERE epoch = $1 FOR SHARE
    )
    INSERT INTO health_checks (name, ok, message, checked_at)
    SELECT name, ok, message, clock_timestamp()
    FROM unnest($2::text[], $3::boolean[], $4::text[]) AS found (name, ok, message), fence
    ON CONFLICT (name) DO UPDATE
    SET ok = excluded.ok, message = excluded.message, checked_at = excluded.checked_at
    RETURNING name
"""
"""Fenced by the leader's epoch: a stale leader writes no row."""

NEEDS_SPACE = """
    BEGIN READ ONLY;
    SET LOCAL work_mem = '64kB';
    SELECT count(*) FROM generate_series(1, 5000);
    ROLLBACK
"""
"""Query that writes a temporary file of about 100 kB, because its result exceeds work_mem."""


@dataclass(frozen=True)
class HealthRecord:
    """State of the leader, the claims and the health checks in the database."""

    heartbeat: Heartbeat | None
    unclaimed: tuple[str, ...]
    """Which of `volumes` and `archives` are not claimed."""
    checks: Mapping[CheckName, DatedCheckResult]


async def connect(url: str, seconds: float) -> "asyncpg.Connection[asyncpg.Record]":
    """Open a connection outside any pool; the caller terminates it."""
    return await asyncpg.connect(asyncpg_dsn(url), timeout=seconds, command_timeout=seconds)


async def read_revision(connection: "asyncpg.Connection[asyncpg.Record]") -> str | None:
    """Return the schema's revision, or None in an empty database."""
    try:
        revision: str | None = await connection.fetchval(REVISION)
    except asyncpg.UndefinedTableError:
        return None
    return revision


async def can_write_to_disk(connection: "asyncpg.Connection[asyncpg.Record]") -> bool:
    """Return whether PostgreSQL can write to its disk. If not, the connection is unusable."""
    try:
        await connection.execute(NEEDS_SPACE)
    except asyncpg.PostgresError as error:
        if is_out_of_space(error):
            return False
        raise
    return True


async def read_health(connection: "asyncpg.Connection[asyncpg.Record] | asyncpg.Pool") -> HealthRecord:
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


async def save_check_results(pool: asyncpg.Pool, epoch: int, checks: Mapping[CheckName, CheckResult]) -> None:
    """Replace the results of these checks, or raise StaleLeader if another coordinator leads."""
    saved = await pool.fetch(
        SAVE,
        epoch,
        [name.value for name in checks],
        [result.ok for result in checks.values()],
        [result.message for result in checks.values()],
    )
    if not saved:
        raise StaleLeader
