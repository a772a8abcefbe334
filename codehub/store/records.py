"""A leader's records in PostgreSQL: every write of one time in office, fenced by its epoch."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Executable, exists, insert, literal, select, true, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from codehub.domain.decision import Decision, changes
from codehub.domain.gc import Holder, Stored, protection
from codehub.domain.observation import ArchiveFact
from codehub.domain.states import Operation
from codehub.domain.ttl import Expiry, TtlDefaults
from codehub.domain.workspace import Workspace
from codehub.store import gate, gc, timeline
from codehub.store import ttl as deadlines
from codehub.store.leader import StaleLeader, fence
from codehub.store.rows import column_values, to_workspace, to_workspaces
from codehub.store.tables import archives, leadership, workspaces
from codehub.store.tables import timeline as entries

ACTOR = "controller"


class Outdated(Exception):  # noqa: N818 - a fact, not a fault
    """The row has changed since the decision was made: look again."""


class PostgresRecords:
    """Single statements commit by themselves: a claim is one round trip."""

    def __init__(self, engine: AsyncEngine, epoch: int, retention: timedelta) -> None:
        self._engine = engine
        self._single = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._epoch = epoch
        self._retention = retention

    async def versions(self) -> dict[str, int]:
        async with self._single.connect() as conn:
            rows = await conn.execute(versions_query())
            return {row.id: row.version for row in rows}

    async def archive_keys(self) -> dict[str, str]:
        c = workspaces.c
        query = select(c.id, c.archive_key).where(c.purged_at.is_(None), c.archive_key.is_not(None))
        async with self._single.connect() as conn:
            return {row.id: row.archive_key for row in await conn.execute(query)}

    async def load(self, workspace_ids: Sequence[str]) -> list[Workspace]:
        query = select(workspaces).where(workspaces.c.id.in_(workspace_ids))
        async with self._single.connect() as conn:
            return to_workspaces((await conn.execute(query)).mappings())

    async def find(self, workspace_id: str) -> Workspace | None:
        query = select(workspaces).where(workspaces.c.id == workspace_id)
        async with self._single.connect() as conn:
            row = (await conn.execute(query)).mappings().one_or_none()
        return to_workspace(row) if row is not None else None

    async def archive_checksum(self, key: str) -> str | None:
        async with self._single.connect() as conn:
            return await conn.scalar(select(archives.c.sha256).where(archives.c.archive_key == key))

    async def save(self, before: Workspace, decision: Decision, now: datetime) -> Workspace:
        if not decision.writes(before):
            await self._confirm(before)
            return before
        saving = self._saving(before, decision, now)
        consumes = decision.consume or decision.desired is not None
        if not consumes and decision.archive is None and not decision.keep_archives:
            async with self._single.connect() as conn:
                return await self._saved(conn, saving)
        async with self._engine.begin() as conn:
            saved = await self._saved(conn, saving)
            if decision.archive is not None:
                await _record_archive(conn, decision.archive, now)
            if decision.keep_archives:
                await _keep_archives(conn, before.id, now + self._retention)
            if not consumes:
                return saved
            await gate.consume(conn, before.id, decision.desired, now=now)
            return await gate.lock(conn, before.id)

    async def _confirm(self, before: Workspace) -> None:
        """Before an effect: this is still the leader, and the row still the one that was decided on."""
        query = select(leadership.c.epoch, workspaces.c.version).select_from(
            leadership.outerjoin(workspaces, workspaces.c.id == before.id)
        )
        async with self._single.connect() as conn:
            row = (await conn.execute(query)).one()
        if row.epoch != self._epoch:
            raise StaleLeader
        if row.version != before.version:
            raise Outdated

    async def _saved(self, conn: AsyncConnection, saving: Executable) -> Workspace:
        row = (await conn.execute(saving)).mappings().one_or_none()
        if row is None:
            await fence(conn, self._epoch)
            raise Outdated
        return to_workspace(row)

    def _saving(self, before: Workspace, decision: Decision, now: datetime) -> Executable:
        """The fence, the compare-and-swap and the timeline entry, in one statement."""
        c = workspaces.c
        saved = (
            update(workspaces)
            .where(c.id == before.id, c.version == before.version, self._in_office())
            .values(**column_values(changes(before, decision.after)), updated_at=now)
            .returning(workspaces)
            .cte("saved")
        )
        saving = select(saved)
        if decision.event is None:
            return saving
        operation = decision.after.operation if decision.after.op_id else before.operation
        entry = {
            "at": now,
            "actor": ACTOR,
            "event": decision.event.value,
            "message": decision.sentence,
            "operation": None if operation is Operation.NONE else operation.value,
        }
        told = select(saved.c.id, *(literal(value, entries.c[name].type) for name, value in entry.items()))
        return saving.add_cte(insert(entries).from_select(["workspace_id", *entry], told).cte("told"))

    def _in_office(self) -> ColumnElement[bool]:
        """True while no other leads, and none can take over before the statement has committed."""
        office = (
            select(true().label("held"))
            .select_from(leadership)
            .where(leadership.c.epoch == self._epoch)
            .with_for_update(read=True)
            .cte("office")
        )
        return exists(select(office.c.held))

    async def touch(self, seen: Mapping[str, datetime]) -> None:
        async with self._engine.begin() as conn:
            await fence(conn, self._epoch)
            await gate.touch(conn, seen)

    async def expirable(self, defaults: TtlDefaults, now: datetime) -> list[Workspace]:
        async with self._single.connect() as conn:
            return await deadlines.candidates(conn, defaults, now)

    async def expire(self, seen: Workspace, expiry: Expiry, now: datetime) -> bool:
        async with self._engine.begin() as conn:
            await fence(conn, self._epoch)
            done = await gate.expire(conn, seen, expiry.desired, expiry.sentence, now=now)
        return done is not None

    async def purge(self, deleted_before: datetime, now: datetime) -> list[str]:
        purged = []
        async with self._engine.begin() as conn:
            await fence(conn, self._epoch)
            for workspace_id in await gc.purge_candidates(conn, deleted_before):
                if await gate.purge(conn, workspace_id, deleted_before, now=now):
                    words = "The grace period is over: purged."
                    await timeline.record(conn, workspace_id, now, actor="gc", event="purged", message=words)
                    purged.append(workspace_id)
        return purged

    async def op_ids(self) -> set[str]:
        async with self._single.connect() as conn:
            return await gc.current_op_ids(conn)

    async def holders(self, now: datetime) -> dict[str, Holder]:
        async with self._engine.connect() as conn:
            return await gc.holders(conn, now)

    async def first_seen(self) -> dict[str, datetime]:
        async with self._single.connect() as conn:
            return await gc.first_seen(conn)

    async def remember(self, seen: Mapping[str, datetime]) -> None:
        async with self._engine.begin() as conn:
            await fence(conn, self._epoch)
            await gc.remember(conn, seen)

    async def condemn(self, item: Stored, present: Collection[str], now: datetime) -> str | None:
        """Asked once more with the workspace's row locked."""
        async with self._engine.begin() as conn:
            await fence(conn, self._epoch)
            holder = (await gc.holders(conn, now, item.workspace_id)).get(item.workspace_id)
            reason = protection(item, holder, present)
            if reason is None:
                await gc.mark_removed(conn, item.key, now)
        return reason


def versions_query() -> Any:
    """What the controller's idle pass asks: served by a covering index."""
    c = workspaces.c
    return select(c.id, c.version).where(c.purged_at.is_(None))


async def _record_archive(conn: AsyncConnection, fact: ArchiveFact, now: datetime) -> None:
    await conn.execute(
        upsert(archives)
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
