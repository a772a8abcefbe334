"""A database with many workspaces, and the query plans of the statements that CodeHub sends."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import asyncpg
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.database.engine import asyncpg_dsn, create_engine
from codehub.domain.states import ConditionName
from tests.selection import EVERYTHING
from tests.waiting import eventually

ROWS = 100_000 if EVERYTHING else 20_000
OWNERS = ROWS // 50
OWN_TTL = 10_000_000  # longer than the age of any workspace
NEWEST = datetime(2026, 11, 1, tzinfo=UTC)
Call = Callable[[AsyncConnection], Awaitable[object]]

_CONDITIONS = ", ".join(
    f"'{name.value}', json_build_object('status', CASE WHEN {{true_{number}}} THEN 'True' ELSE 'False' END, "
    "'reason', 'Observed', 'message', '', 'last_transition_time', '2026-01-01T00:00:00+00:00')"
    for number, name in enumerate(ConditionName)
)
_TRUE_WHEN = {
    ConditionName.VOLUME_READY: "phase IN ('RUNNING', 'STANDBY')",
    ConditionName.ARCHIVE_READY: "phase IN ('ARCHIVED', 'DELETED')",
    ConditionName.CONTAINER_EXISTS: "phase = 'RUNNING'",
    ConditionName.CONTAINER_READY: "phase = 'RUNNING'",
}

# 80 % ARCHIVED, 15 % STANDBY, 1 % RUNNING, 1 % ERROR, 2 % in the trash, 1 % purged. A tenth has
# separate TTLs.
_WORKSPACES = """
    INSERT INTO workspaces (
        id, owner_id, name, image_ref, instance_backend, storage_backend, home_store_key,
        standby_ttl_seconds, archive_ttl_seconds, desired_state, deleted_at, purged_at, last_access_at,
        conditions, phase, phase_changed_at, error_reason, archive_key, created_at, updated_at)
    SELECT id, owner_id, 'workspace ' || n, 'code-server', 'process', 'local-dir', id,
        CASE WHEN n % 10 = 7 THEN {own_ttl} END, CASE WHEN n % 10 = 7 THEN {own_ttl} END,
        CASE phase WHEN 'ERROR' THEN 'RUNNING' ELSE phase END,
        CASE phase WHEN 'DELETED' THEN at + interval '1 day' END,
        CASE WHEN percent = 99 THEN at + interval '8 days' END,
        at, jsonb_build_object({conditions}), phase, at,
        CASE phase WHEN 'ERROR' THEN 'DataLost' END,
        CASE WHEN phase IN ('ARCHIVED', 'DELETED') THEN id || '/' || id || '/home.tar.zst' END, at, at
    FROM (
        SELECT n, percent, lpad(md5(n::text), 26, '0') AS id, 'owner-' || n % {owners} AS owner_id,
            timestamptz '{newest}' - n * interval '1 minute' AS at,
            CASE WHEN percent < 80 THEN 'ARCHIVED' WHEN percent < 95 THEN 'STANDBY'
                 WHEN percent < 96 THEN 'RUNNING' WHEN percent < 97 THEN 'ERROR' ELSE 'DELETED' END AS phase
        FROM (SELECT n, (n * 7919 / 13) % 100 AS percent FROM generate_series(1, {rows}) n) numbered
    ) made
"""
_OTHERS = """
    INSERT INTO timeline (workspace_id, at, actor, event, message)
        SELECT id, created_at, owner_id, 'created', 'Created; to be RUNNING.' FROM workspaces;
    INSERT INTO archives
        (archive_op_id, workspace_id, archive_key, sha256, bytes, unpacked, entries, created_at)
        SELECT id, id, archive_key, 'x', 1, 1, 1, created_at FROM workspaces WHERE archive_key IS NOT NULL;
    INSERT INTO execs (id, workspace_id, actor_id, actor_name, by_token, command, cwd, tty, key, body_hash,
                       state, created_at, seen_at, ended_at)
        SELECT 'held-' || number || '-' || n, id, owner_id, owner_id, true, '[]', '', false, 'key-' || n, 'x',
            CASE WHEN runs THEN 'running' ELSE 'exited' END, created_at, created_at,
            CASE WHEN NOT runs THEN timestamptz '{newest}' - number * interval '1 minute' END
        FROM (SELECT *, phase = 'RUNNING' AS runs FROM workspaces WHERE number % 20 = 5) made
        CROSS JOIN generate_series(1, 20) n;
    INSERT INTO leases (id, workspace_id, actor_id, actor_name, reason, created_at, expires_at)
        SELECT 'lease-' || number, id, owner_id, owner_id, 'a build', created_at,
            timestamptz '{newest}' + number * interval '1 second'
        FROM workspaces;
    INSERT INTO sessions (id_hash, user_id, expires_at)
        SELECT sha256(n::text::bytea), 'owner-' || n % {owners}, now() + n * interval '1 minute'
        FROM generate_series(1, 20000) n;
    INSERT INTO tokens (id, user_id, name, token_hash, prefix, scopes, created_at, created_by)
        SELECT 'token-' || n, 'owner-' || n % {owners}, 'ci', sha256(n::text::bytea), 'chub_abc', '{{read}}',
            timestamptz '{newest}', 'owner-5'
        FROM generate_series(1, 20000) n;
    INSERT INTO login_failures (key, failures, last_failed_at)
        SELECT 'somebody@' || n, 1, timestamptz '{newest}' FROM generate_series(1, 20000) n;
    INSERT INTO audit_log (at, actor_id, actor_name, actor_kind, address, action, target_kind, target_id,
                           target_name, outcome, details)
        SELECT timestamptz '{newest}' - (20000 - n) * interval '10 minutes', 'owner-' || n % {owners},
            'owner-' || n % {owners}, 'user', '192.0.2.1',
            CASE n % 10 WHEN 3 THEN 'session.failed' ELSE 'action.' || n % 200 END,
            'user', 'target-' || n % 1000, 'target-' || n % 1000, 'success', '{{}}'
        FROM generate_series(1, 20000) n;
"""


async def fill(url: str) -> None:
    """Insert the rows, and leave statistics and visibility as autovacuum does."""
    true_when = {f"true_{n}": _TRUE_WHEN.get(name, "true") for n, name in enumerate(ConditionName)}
    conditions = _CONDITIONS.format(**true_when)
    connection = await asyncpg.connect(asyncpg_dsn(url))
    try:
        await connection.execute(
            "INSERT INTO users (id, username, password_hash, role) "
            f"SELECT 'owner-' || n, 'owner-' || n, 'x', 'user' FROM generate_series(0, {OWNERS - 1}) n"
        )
        await connection.execute(
            "SET session_replication_role = replica"
        )  # neither triggers nor foreign keys
        await connection.execute(
            _WORKSPACES.format(
                conditions=conditions, owners=OWNERS, rows=ROWS, own_ttl=OWN_TTL, newest=NEWEST
            )
        )
        await connection.execute(_OTHERS.format(owners=OWNERS, newest=NEWEST))
        await connection.execute("VACUUM (ANALYZE)")
        await eventually(lambda: _is_visible_to_all(connection), "every page to be visible to all")
    finally:
        await connection.close()


async def _is_visible_to_all(connection: "asyncpg.Connection[Any]") -> bool:
    """Run VACUUM again: older snapshots, as of autovacuum, keep it from marking pages."""
    await connection.execute("VACUUM workspaces")
    found = await connection.fetchval(
        "SELECT relallvisible = relpages FROM pg_class WHERE relname = 'workspaces'"
    )
    return bool(found)


@dataclass(frozen=True)
class Plan:
    """Query plan of one statement."""

    statement: str
    root: dict[str, Any]

    def nodes(self) -> Iterator[dict[str, Any]]:
        pending = [self.root]
        while pending:
            node = pending.pop()
            pending += node.get("Plans", [])
            yield node

    @property
    def indexes(self) -> set[str]:
        return {node["Index Name"] for node in self.nodes() if "Index Name" in node}

    @property
    def scanned(self) -> set[str]:
        """Tables that are read from end to end."""
        return {node["Relation Name"] for node in self.nodes() if node["Node Type"] == "Seq Scan"}

    @property
    def rows_read(self) -> int:
        """The rows that scans returned or filtered out (with ANALYZE)."""
        leaves = [node for node in self.nodes() if "Relation Name" in node]
        return sum(
            (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
            for node in leaves
        )


class Explainer:
    """Runs functions of CodeHub, and explains each statement that they send."""

    def __init__(self, url: str) -> None:
        self._url = url

    @asynccontextmanager
    async def _recording(self) -> AsyncIterator[tuple[AsyncConnection, list[tuple[str, Any]]]]:
        engine = create_engine(self._url)
        sent: list[tuple[str, Any]] = []

        def record(_conn: object, _cursor: object, statement: str, parameters: Any, *_rest: object) -> None:
            sent.append((statement, parameters))

        async with engine.connect() as conn:
            event.listen(engine.sync_engine, "before_cursor_execute", record)
            yield conn, sent
            await conn.rollback()
        await engine.dispose()

    async def explain(self, call: Call) -> list[Plan]:
        """Explain each statement with its parameters, in a transaction that is rolled back."""
        async with self._statements_of(call) as (connection, sent):
            return [
                await _plan(connection, statement, f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", *parameters)
                for statement, parameters in sent
            ]

    async def explain_generic(self, call: Call) -> list[Plan]:
        """Explain the generic plan of each statement, which prepared statements may use."""
        async with self._statements_of(call) as (connection, sent):
            await connection.execute("SET plan_cache_mode = force_generic_plan")
            plans = []
            for number, (statement, parameters) in enumerate(sent):
                await connection.execute(f"PREPARE s{number} AS {statement}")
                given = f"({', '.join(['NULL'] * len(parameters))})" if parameters else ""
                explain = f"EXPLAIN (FORMAT JSON) EXECUTE s{number}{given}"
                plans.append(await _plan(connection, statement, explain))
        return plans

    async def plain_indexes(self) -> set[str]:
        """Return the indexes that are not unique, whose only purpose is speed."""
        connection = await asyncpg.connect(asyncpg_dsn(self._url))
        try:
            rows = await connection.fetch(
                "SELECT indexrelid::regclass::text AS name FROM pg_index JOIN pg_class ON oid = indexrelid "
                "WHERE NOT indisunique AND relnamespace = 'public'::regnamespace"
            )
        finally:
            await connection.close()
        return {row["name"] for row in rows}

    @asynccontextmanager
    async def _statements_of(
        self, call: Call
    ) -> AsyncIterator[tuple["asyncpg.Connection[Any]", list[tuple[str, Any]]]]:
        async with self._recording() as (conn, sent):
            await call(conn)
        connection = await asyncpg.connect(asyncpg_dsn(self._url))
        try:
            yield connection, sent
        finally:
            await connection.close()


async def _plan(
    connection: "asyncpg.Connection[Any]", statement: str, explain: str, *parameters: object
) -> Plan:
    transaction = connection.transaction()
    await transaction.start()
    try:
        found = json.loads(await connection.fetchval(explain, *parameters))
    finally:
        await transaction.rollback()
    return Plan(statement, found[0]["Plan"])
