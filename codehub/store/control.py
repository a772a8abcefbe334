"""The controller's own reads and writes. Every write is fenced by the leader's epoch (contract 3)."""

from dataclasses import fields
from datetime import datetime, timedelta

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from codehub.domain.decision import Decision
from codehub.domain.observation import ArchiveFact
from codehub.domain.workspace import Workspace
from codehub.store import gate, timeline
from codehub.store.leader import fence
from codehub.store.rows import column_values, to_workspace, to_workspaces
from codehub.store.tables import archives, workspaces

ACTOR = "controller"

CONTROLLER_COLUMNS = (
    "conditions", "observed_at", "phase", "phase_changed_at", "operation", "op_id", "op_started_at",
    "progress", "progress_at", "archive_op_id", "archive_key", "upstream", "error_count", "error_reason",
    "error_message", "next_retry_at", "started_at", "home_ctx",
)  # fmt: skip
DECIDED_ON = tuple(
    field.name
    for field in fields(Workspace)
    if field.name not in ("name", "description", "memo", "last_access_at", "keep_until", "updated_at",
                          "standby_ttl_seconds", "archive_ttl_seconds", "version")
)  # fmt: skip


class Outdated(Exception):  # noqa: N818 - a fact, not a fault
    """The row has changed since the decision was made: look again."""


async def load(engine: AsyncEngine, workspace_id: str) -> Workspace | None:
    async with engine.connect() as conn:
        row = (
            (await conn.execute(select(workspaces).where(workspaces.c.id == workspace_id)))
            .mappings()
            .one_or_none()
        )
    return to_workspace(row) if row is not None else None


async def load_all(engine: AsyncEngine) -> list[Workspace]:
    """Every workspace that may still need something."""
    async with engine.connect() as conn:
        rows = (await conn.execute(select(workspaces).where(workspaces.c.purged_at.is_(None)))).mappings()
        return to_workspaces(rows)


async def archive_checksum(engine: AsyncEngine, key: str) -> str | None:
    """The sha256 that an archive had when it was committed."""
    async with engine.connect() as conn:
        return await conn.scalar(select(archives.c.sha256).where(archives.c.archive_key == key))


async def save(
    engine: AsyncEngine,
    before: Workspace,
    decision: Decision,
    *,
    epoch: int,
    now: datetime,
    retention: timedelta,
) -> Workspace:
    """Commit a decision, in one transaction, if nothing it was decided on has changed."""
    async with engine.begin() as conn:
        await fence(conn, epoch)
        current = await gate.lock(conn, before.id)
        if any(getattr(current, name) != getattr(before, name) for name in DECIDED_ON):
            raise Outdated
        await _write_columns(conn, before, decision.after, now)
        if decision.archive is not None:
            await _record_archive(conn, decision.archive, now)
        if decision.keep_archives:
            await _keep_archives(conn, before.id, now + retention)
        if decision.event is not None:
            operation = decision.after.operation if decision.after.op_id else before.operation
            await timeline.record(
                conn,
                before.id,
                now,
                actor=ACTOR,
                event=decision.event.value,
                message=decision.sentence,
                operation=operation,
            )
        if decision.consume or decision.desired is not None:
            await gate.consume(conn, before.id, decision.desired, now=now)
        return await gate.lock(conn, before.id)


def changes(before: Workspace, after: Workspace) -> dict[str, object]:
    """The controller's columns in which a decision differs from the row."""
    return {
        name: getattr(after, name)
        for name in CONTROLLER_COLUMNS
        if getattr(after, name) != getattr(before, name)
    }


async def _write_columns(conn: AsyncConnection, before: Workspace, after: Workspace, now: datetime) -> None:
    values = changes(before, after)
    if values:
        await conn.execute(
            update(workspaces)
            .where(workspaces.c.id == before.id)
            .values(**column_values(values), updated_at=now)
        )


async def _record_archive(conn: AsyncConnection, fact: ArchiveFact, now: datetime) -> None:
    await conn.execute(
        insert(archives)
        .values(
            archive_op_id=fact.archive_op_id,
            workspace_id=fact.workspace_id,
            archive_key=fact.key,
            sha256=fact.sha256,
            bytes=fact.bytes,
            unpacked=fact.unpacked,
            entries=fact.entries,
            created_at=now,
        )
        .on_conflict_do_nothing()
    )


async def _keep_archives(conn: AsyncConnection, workspace_id: str, until: datetime) -> None:
    """What a recovery leaves behind stays for the grace period."""
    await conn.execute(
        update(archives).where(archives.c.workspace_id == workspace_id).values(kept_until=until)
    )
