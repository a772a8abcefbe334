"""Reads and writes of a leader, fenced by the epoch of its term (ADR 0009).

Statements that the controller runs for each workspace are plain SQL on asyncpg connections, one
round trip each: SQLAlchemy would take longer to build them than PostgreSQL to execute them.
"""

from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import asyncpg
from asyncpg.pool import PoolConnectionProxy
from sqlalchemy import select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from codehub.database import (
    audit,
    cpu_hold_gate,
    exec_gate,
    exec_queries,
    gate,
    gateway_reports,
    gc_queries,
    health_checks,
    home_sizes,
    lease_gate,
    lockout,
    running_workspaces,
    timeline,
    ttl_queries,
)
from codehub.database.engine import is_lock_timeout
from codehub.database.holds import read_holds
from codehub.database.leadership import StaleLeader, fence
from codehub.database.row_mapping import COLUMNS, column_values, to_workspace, to_workspaces
from codehub.database.tables import workspaces
from codehub.domain.audit import Actor, ActorKind
from codehub.domain.awake import CpuHold, Holds
from codehub.domain.decision import CONTROLLER_COLUMNS, Decision
from codehub.domain.disk import HomeSize, LiveHome, Notice
from codehub.domain.gateway_reports import GatewayReport
from codehub.domain.gc import ArchiveHolder, StoredArchive, protection
from codehub.domain.health_checks import CheckName, CheckResult
from codehub.domain.observation import ArchiveFact
from codehub.domain.other_backends import Backends
from codehub.domain.running_workspace import RunningWorkspace
from codehub.domain.states import Operation
from codehub.domain.ttl import Expiry, TtlDefaults
from codehub.domain.workspace import Workspace

ACTOR = "controller"
COORDINATOR = Actor(ActorKind.SYSTEM, "coordinator")
"""The leader's name in the audit log."""
ROWS_AT_ONCE = 1000
"""Rows of one transaction. It holds the leadership row, which the leader's heartbeat needs, so it
must take far less time than a heartbeat may."""
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
PURGED_AT_ONCE = 100
"""Workspaces that one transaction purges, with several statements each."""
Connection: TypeAlias = "PoolConnectionProxy[asyncpg.Record]"

_ALL_COLUMNS = ", ".join(column.name for column in COLUMNS)

VERSIONS = "SELECT array_agg(id), array_agg(version) FROM workspaces WHERE purged_at IS NULL"
"""For the idle pass. A covering index answers it, and two arrays are far cheaper than as many
rows."""

ARCHIVE_KEYS = """
    SELECT id, archive_key, (conditions -> 'storage.archive_ready' ->> 'status') = 'True' AS ready
    FROM workspaces WHERE purged_at IS NULL AND archive_key IS NOT NULL
"""
"""For the hourly comparison of archives with the store."""

WITH_UPSTREAM = "SELECT id FROM workspaces WHERE purged_at IS NULL AND upstream IS NOT NULL"

LOAD = f"SELECT {_ALL_COLUMNS} FROM workspaces WHERE id = ANY($1)"  # noqa: S608 - the table's own columns

CHECKSUM = "SELECT sha256 FROM archives WHERE archive_key = $1"

CONFIRM = "SELECT epoch, version FROM leadership LEFT JOIN workspaces ON id = $1"
"""For the check before an effect: the epoch of the leader, and the version of the row."""

SAVE = f"""
    WITH locked AS (
        SELECT FROM workspaces WHERE id = $2 AND version = $3 FOR NO KEY UPDATE
    ),
    fence AS (
        SELECT FROM leadership, locked WHERE epoch = $1 FOR SHARE OF leadership
    ),
    saved AS (
        UPDATE workspaces
        SET updated_at = $4, {", ".join(f"{name} = ${n}" for n, name in enumerate(CONTROLLER_COLUMNS, 8))}
        WHERE id = $2 AND version = $3 AND EXISTS (SELECT FROM fence)
        RETURNING id, version
    ),
    entry AS (
        INSERT INTO timeline (workspace_id, at, actor, event, message, operation)
        SELECT id, $4, '{ACTOR}', $5::text, $6::text, $7::text FROM saved WHERE $5 IS NOT NULL
    )
    SELECT version FROM saved
"""  # noqa: S608 - the controller's own columns
"""Saves a decision: fence, compare-and-swap and timeline entry.

It returns no row after a version conflict, or if another coordinator leads.

The workspace's row is locked first, so that a save that waits for it does not hold the leadership
row.
"""

RECORD_ARCHIVE = """
    INSERT INTO archives
        (archive_op_id, workspace_id, archive_key, sha256, bytes, unpacked, entries, created_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
    ON CONFLICT DO NOTHING
"""

KEEP_ARCHIVES = "UPDATE archives SET kept_until = $2 WHERE workspace_id = $1"
"""Keeps the archives that a recovery or a restore leaves behind for the grace period."""


class VersionConflict(Exception):  # noqa: N818 - a fact, not a fault
    """Conflict with a change of the row since the decision was made."""


class RowLocked(Exception):  # noqa: N818 - a fact, not a fault
    """Row lock that another transaction has held for longer than the leader may wait."""

    def __init__(self) -> None:
        super().__init__("another transaction keeps a row locked; trying again later")


class PostgresLeaderDatabase:
    """PostgreSQL implementation of `coordinator.leader_interfaces.LeaderDatabase`."""

    def __init__(
        self, pool: asyncpg.Pool, engine: AsyncEngine, epoch: int, retention: timedelta, backends: Backends
    ) -> None:
        self._pool = pool
        self._engine = engine
        self._epoch = epoch
        self._retention = retention
        self._backends = backends

    @asynccontextmanager
    async def _fenced(self) -> AsyncIterator[AsyncConnection]:
        """Begin a transaction of this term, or raise StaleLeader or RowLocked."""
        try:
            async with self._engine.begin() as conn:
                await fence(conn, self._epoch)
                yield conn
        except DBAPIError as error:
            if is_lock_timeout(error):
                raise RowLocked from error
            raise

    async def versions(self) -> dict[str, int]:
        row = await self._pool.fetchrow(VERSIONS)
        assert row is not None
        ids, versions = row
        return dict(zip(ids or (), versions or (), strict=True))

    async def archive_keys(self) -> dict[str, tuple[str, bool]]:
        return {row["id"]: (row["archive_key"], row["ready"]) for row in await self._pool.fetch(ARCHIVE_KEYS)}

    async def ids_with_upstream(self) -> set[str]:
        return {row[0] for row in await self._pool.fetch(WITH_UPSTREAM)}

    async def clear_upstreams(self, workspace_ids: Collection[str]) -> None:
        c = workspaces.c
        for some in _batches(sorted(workspace_ids)):
            async with self._fenced() as conn:
                stale = c.id.in_(some) & c.upstream.is_not(None)
                await conn.execute(update(workspaces).where(stale).values(upstream=None))

    async def load(self, workspace_ids: Sequence[str]) -> list[Workspace]:
        return to_workspaces(await self._pool.fetch(LOAD, workspace_ids))

    async def find(self, workspace_id: str) -> Workspace | None:
        row = await self._pool.fetchrow(LOAD, [workspace_id])
        return to_workspace(row) if row is not None else None

    async def archive_checksum(self, key: str) -> str | None:
        found: str | None = await self._pool.fetchval(CHECKSUM, key)
        return found

    async def save(self, before: Workspace, decision: Decision, now: datetime) -> Workspace:
        try:
            return await self._commit(before, decision, now)
        except asyncpg.LockNotAvailableError as error:
            raise RowLocked from error

    async def _commit(self, before: Workspace, decision: Decision, now: datetime) -> Workspace:
        async with self._pool.acquire() as connection:
            if not decision.writes(before):
                await self._confirm(connection, before)
                return before
            if decision.archive is None and not decision.keep_archives and not decision.changes_request:
                return await self._save(connection, before, decision, now)
            async with connection.transaction():
                saved = await self._save(connection, before, decision, now)
                if decision.archive is not None:
                    await connection.execute(RECORD_ARCHIVE, *_archive_row(decision.archive), now)
                if decision.keep_archives:
                    await connection.execute(KEEP_ARCHIVES, before.id, now + self._retention)
                if decision.changes_request:
                    desired = None if decision.desired is None else decision.desired.value
                    version = await connection.fetchval(gate.CONSUME_REQUEST, before.id, desired, now)
                    saved = replace(decision.saved_row(), version=version, updated_at=now)
                return saved

    async def _confirm(self, connection: Connection, before: Workspace) -> None:
        row = await connection.fetchrow(CONFIRM, before.id)
        if row is None or row["epoch"] != self._epoch:
            raise StaleLeader
        if row["version"] != before.version:
            raise VersionConflict

    async def _save(
        self, connection: Connection, before: Workspace, decision: Decision, now: datetime
    ) -> Workspace:
        """Save a decision and return the new row, or raise StaleLeader or VersionConflict."""
        after, event = decision.after, decision.event
        operation = after.operation if after.op_id else before.operation
        columns = column_values({name: getattr(after, name) for name in CONTROLLER_COLUMNS})
        version = await connection.fetchval(
            SAVE,
            self._epoch,
            before.id,
            before.version,
            now,
            None if event is None else event.value,
            decision.sentence,
            None if operation is Operation.NONE else operation.value,
            *(columns[name] for name in CONTROLLER_COLUMNS),
        )
        if version is None:
            await self._confirm(connection, before)
            raise VersionConflict
        return replace(after, version=version, updated_at=now)

    async def advance_last_access(self, seen: Mapping[str, datetime]) -> None:
        for some in _batches(sorted(seen)):
            async with self._fenced() as conn:
                await gate.advance_last_access(
                    conn, {workspace_id: seen[workspace_id] for workspace_id in some}
                )

    async def gateway_reports(self) -> dict[str, GatewayReport]:
        async with self._engine.connect() as conn:
            return await gateway_reports.read_reports(conn)

    async def update_gateway_reports(self, carried: Mapping[str, int], gone: Collection[str]) -> None:
        async with self._fenced() as conn:
            await gateway_reports.update_reports(conn, carried, gone)

    async def reset_idle_time(self, now: datetime) -> None:
        restarted = ROWS_AT_ONCE
        while restarted == ROWS_AT_ONCE:
            async with self._fenced() as conn:
                restarted = await gate.reset_idle_time(conn, now, ROWS_AT_ONCE)

    async def ttl_candidates(self, defaults: TtlDefaults, now: datetime) -> list[Workspace]:
        async with self._engine.connect() as conn:
            return await ttl_queries.candidates(conn, defaults, now)

    async def holds(self, workspace_ids: Collection[str]) -> Mapping[str, Holds]:
        async with self._engine.connect() as conn:
            return await read_holds(conn, workspace_ids)

    async def remove_expired_leases(self, now: datetime) -> int:
        removed, some = 0, ROWS_AT_ONCE
        while some == ROWS_AT_ONCE:
            async with self._fenced() as conn:
                some = await lease_gate.remove_expired(conn, now, ROWS_AT_ONCE)
            removed += some
        return removed

    async def running_workspaces(self) -> list[RunningWorkspace]:
        rows = await self._pool.fetch(running_workspaces.RUNNING)
        return [running_workspaces.to_running_workspace(row) for row in rows]

    async def begin_cpu_hold(self, workspace_id: str, hold: CpuHold) -> None:
        async with self._fenced() as conn:
            await cpu_hold_gate.begin(conn, workspace_id, hold)

    async def renew_cpu_holds(self, holds: Mapping[str, CpuHold]) -> None:
        for some in _batches(sorted(holds)):
            async with self._fenced() as conn:
                await cpu_hold_gate.renew(conn, {name: holds[name] for name in some})

    async def end_cpu_hold(self, workspace_id: str, now: datetime) -> None:
        async with self._fenced() as conn:
            await cpu_hold_gate.end(conn, workspace_id, now)

    async def cpu_holds_not_measured(self, now: datetime) -> list[str]:
        async with self._engine.connect() as conn:
            return await cpu_hold_gate.not_measured(conn, now)

    async def apply_expiry(self, seen: Workspace, expiry: Expiry, now: datetime) -> bool:
        try:
            async with self._fenced() as conn:
                done = await gate.apply_expiry(conn, seen, expiry.desired, expiry.sentence, now=now)
        except RowLocked:
            return False
        return done is not None

    async def homes(self) -> list[LiveHome]:
        return [home_sizes.to_live_home(row) for row in await self._pool.fetch(home_sizes.LIVE_HOMES)]

    async def record_sizes(self, sizes: Mapping[str, HomeSize], now: datetime) -> None:
        for some in _batches(sorted(sizes)):
            async with self._fenced() as conn:
                await home_sizes.record_sizes(conn, {name: sizes[name] for name in some}, now)

    async def warn_of_disk(self, notice: Notice, now: datetime) -> None:
        async with self._fenced() as conn:
            await home_sizes.put_notice(conn, notice, warned_at=now)
            await timeline.record(
                conn, notice.workspace_id, now, actor="disk", event="warned", message=notice.message
            )

    async def stop_for_disk(self, home: LiveHome, notice: Notice, now: datetime) -> bool:
        async with self._fenced() as conn:
            since = home.phase_changed_at
            done = await gate.stop_for_disk(conn, home.workspace_id, since, notice.message, now=now)
            if done is not None:
                await home_sizes.put_notice(conn, notice, stopped_at=now)
        return done is not None

    async def clear_notices(self, workspace_ids: Collection[str]) -> None:
        for some in _batches(sorted(workspace_ids)):
            async with self._fenced() as conn:
                await home_sizes.clear_notices(conn, some)

    async def purge(self, deleted_before: datetime | None, now: datetime) -> list[str]:
        purged = []
        async with self._engine.connect() as conn:
            due = await gc_queries.purge_candidates(conn, deleted_before, self._backends)
        async with self._fenced() as conn:
            for workspace_id in due[:PURGED_AT_ONCE]:
                if await gate.purge(conn, workspace_id, deleted_before or LONG_AGO, now=now):
                    purged.append(workspace_id)
        return purged

    async def op_ids(self) -> set[str]:
        async with self._engine.connect() as conn:
            return await gc_queries.current_op_ids(conn)

    async def archive_holders(self, now: datetime) -> dict[str, ArchiveHolder]:
        async with self._engine.connect() as conn:
            return await gc_queries.archive_holders(conn, now, self._backends)

    async def read_orphans(self) -> dict[str, datetime]:
        async with self._engine.connect() as conn:
            return await gc_queries.read_orphans(conn)

    async def replace_orphans(self, seen: Mapping[str, datetime]) -> None:
        for some in _batches(sorted((await self.read_orphans()).keys() - seen.keys())):
            async with self._fenced() as conn:
                await gc_queries.delete_orphans(conn, some)
        for some in _batches(sorted(seen)):
            async with self._fenced() as conn:
                await gc_queries.insert_orphans(conn, {key: seen[key] for key in some})

    async def mark_archive_removed(
        self, item: StoredArchive, present: Collection[str], archives_kept: int, now: datetime
    ) -> str | None:
        """Check once more that nothing protects the archive, with the workspace's row locked."""
        async with self._fenced() as conn:
            holder = (await gc_queries.archive_holders(conn, now, self._backends, item.workspace_id)).get(
                item.workspace_id
            )
            reason = protection(item, holder, present, archives_kept)
            if reason is None:
                await gc_queries.mark_removed(conn, item.key, now)
        return reason

    async def trim_audit_log(self, before: datetime) -> int:
        async with self._engine.begin() as conn:
            await fence(conn, self._epoch)
            return await audit.remove_older(conn, self._epoch, before, ROWS_AT_ONCE)

    async def remove_expired_execs(self, ended_before: datetime, now: datetime) -> int:
        async with self._fenced() as conn:
            return await exec_gate.remove_expired(conn, ended_before, now)

    async def wanted_execs(self, exec_ids: Collection[str], now: datetime) -> set[str]:
        wanted: set[str] = set()
        for some in _batches(sorted(exec_ids)):
            async with self._fenced() as conn:
                await exec_gate.mark_archived_output(conn, some, now)
                wanted |= await exec_queries.with_output(conn, some)
        return wanted

    async def without_home(self, workspace_ids: Collection[str]) -> set[str]:
        async with self._engine.connect() as conn:
            return set(workspace_ids) - await exec_queries.with_home(conn, workspace_ids)

    @asynccontextmanager
    async def locked_without_home(self, workspace_id: str) -> AsyncIterator[bool]:
        async with self._fenced() as conn:
            await conn.execute(
                select(workspaces.c.id).where(workspaces.c.id == workspace_id).with_for_update()
            )
            yield not await exec_queries.with_home(conn, [workspace_id])

    async def trim_timelines(self) -> int:
        async with self._engine.connect() as conn:
            kept = dict.fromkeys(await timeline.find_long(conn), timeline.KEPT)
            kept |= dict.fromkeys(await timeline.find_purged(conn), 0)
        removed = 0
        for workspace_id, entries in kept.items():
            some = ROWS_AT_ONCE
            while some == ROWS_AT_ONCE:
                async with self._fenced() as conn:
                    some = await timeline.remove_older(conn, workspace_id, entries, ROWS_AT_ONCE)
                removed += some
        return removed

    async def record_counted_failures(self, now: datetime) -> None:
        async with audit.transaction(self._engine, COORDINATOR, now) as act:
            await fence(act.conn, self._epoch)
            await audit.record_counted_failures(act)

    async def forget_login_failures(self) -> int:
        async with self._fenced() as conn:
            return await lockout.forget_excess(conn)

    async def health_checks(self) -> Mapping[CheckName, CheckResult]:
        return (await health_checks.read_health(self._pool)).checks

    async def save_health_checks(self, checks: Mapping[CheckName, CheckResult]) -> None:
        await health_checks.save_check_results(self._pool, self._epoch, checks)


def _archive_row(fact: ArchiveFact) -> tuple[object, ...]:
    size = (fact.bytes, fact.unpacked, fact.entries)
    return (fact.archive_op_id, fact.workspace_id, fact.key, fact.sha256, *size)


def _batches(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[start : start + ROWS_AT_ONCE] for start in range(0, len(names), ROWS_AT_ONCE))
