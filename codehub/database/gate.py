"""Gate: the only writer of desired_state, deleted_at, keep_until, request, and times of use and holds.

The API, the gateway and the TTL runner change these columns through this module only (contract 3).
Each function runs in its caller's transaction, with the row locked. It raises a Problem or returns
the changed workspace. `lease_gate` has the functions for leases, `cpu_hold_gate` those for CPU use.

A function that takes `by_person` moves `person_access_at` only for a person. `last_access_at` moves
for programs too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Select, bindparam, func, insert, or_, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.database import timeline
from codehub.database.advisory_locks import AdvisoryLock, hold_lock
from codehub.database.archive_usage import archive_bytes
from codehub.database.index_predicates import COUNTED, TRASH
from codehub.database.row_mapping import COLUMNS, column_values, conditions_json, to_workspace
from codehub.database.tables import archives, workspaces
from codehub.domain import allowed_changes
from codehub.domain.conditions import initial_conditions
from codehub.domain.home_keys import home_store_key
from codehub.domain.other_backends import Backends
from codehub.domain.problems import InvalidState, ValidationFailed, WorkspaceNotFound
from codehub.domain.states import DesiredState, Operation, Phase
from codehub.domain.timeline_text import CREATED, REQUESTED
from codehub.domain.ttl import TtlDefaults, extended
from codehub.domain.user_limits import (
    Limits,
    Usage,
    WorkspaceCounts,
    admit_archives,
    admit_running,
    admit_undeleted,
    admit_workspace,
)
from codehub.domain.workspace import PendingRequest, RecoverSource, RequestKind, Workspace
from codehub.ulids import new_id

EDITABLE: Final = frozenset(
    {"name", "description", "memo", "standby_ttl_seconds", "archive_ttl_seconds", "awake_cpu_percent"}
)


@dataclass(frozen=True)
class RecoverFrom:
    source: RecoverSource
    archive_op_id: str | None = None


def audit_details(source: RecoverFrom | None) -> dict[str, str | None]:
    """Return the details that the audit log keeps of a recovery."""
    if source is None:
        return {}
    return {"source": source.source.value, "archive_op_id": source.archive_op_id}


_WORKSPACE: Final = select(*COLUMNS).where(workspaces.c.id == bindparam("workspace_id"))
_LOCKED: Final = _WORKSPACE.with_for_update()


async def lock_workspace(conn: AsyncConnection, workspace_id: str) -> Workspace:
    """Return a workspace, and lock its row for this transaction."""
    return await _read(conn, _LOCKED, workspace_id)


async def _read(conn: AsyncConnection, query: Select[Any], workspace_id: str) -> Workspace:
    row = (await conn.execute(query, {"workspace_id": workspace_id})).mappings().one_or_none()
    if row is None:
        raise WorkspaceNotFound
    return to_workspace(row)


async def create(
    conn: AsyncConnection,
    *,
    owner_id: str,
    name: str,
    description: str,
    image_ref: str,
    standby_ttl: int | None,
    archive_ttl: int | None,
    desired: DesiredState,
    actor: str,
    limits: Limits,
    backends: Backends,
    now: datetime,
    awake_cpu_percent: int | None = None,
) -> Workspace:
    if desired not in allowed_changes.REQUESTABLE_STATES:
        raise ValidationFailed("desired_state must be RUNNING, STANDBY or ARCHIVED.")
    workspace_id = new_id()
    await _lock_limits(conn)
    admit_workspace(await _count_owned(conn, owner_id), limits)
    if limits.archive_bytes_per_user:
        admit_archives((await archive_bytes(conn, [owner_id])).get(owner_id, 0), limits)
    if desired is DesiredState.RUNNING:
        await _admit(conn, owner_id, workspace_id, limits)
    made = await conn.execute(
        insert(workspaces)
        .values(
            id=workspace_id,
            owner_id=owner_id,
            name=name,
            description=description,
            image_ref=image_ref,
            instance_backend=backends.instance,
            storage_backend=backends.storage,
            home_store_key=home_store_key(owner_id, workspace_id),
            standby_ttl_seconds=standby_ttl,
            archive_ttl_seconds=archive_ttl,
            awake_cpu_percent=awake_cpu_percent,
            desired_state=desired.value,
            last_access_at=now,
            person_access_at=now,
            conditions=conditions_json(initial_conditions(now)),
            phase=Phase.PENDING.value,
            phase_changed_at=now,
            created_at=now,
            updated_at=now,
        )
        .returning(*COLUMNS)
    )
    await timeline.record(conn, workspace_id, now, actor=actor, event="created", message=CREATED[desired])
    return to_workspace(made.mappings().one())


async def set_desired_state(
    conn: AsyncConnection,
    workspace_id: str,
    desired: DesiredState,
    *,
    actor: str,
    limits: Limits,
    now: datetime,
    by_person: bool = True,
) -> Workspace:
    """Set desired_state. A start counts as activity."""
    if desired is DesiredState.RUNNING:
        seen = await _read(conn, _WORKSPACE, workspace_id)
        if not allowed_changes.check_desired_state(seen, desired):
            return seen
        # First without the lock: reloads of a page at the limit must not queue for it.
        admit_running(await usage(conn, seen.owner_id, besides=workspace_id), limits)
        await _lock_limits(conn)
    workspace = await lock_workspace(conn, workspace_id)
    if not allowed_changes.check_desired_state(workspace, desired):
        return workspace
    changes: dict[str, Any] = {"desired_state": desired.value}
    if desired is DesiredState.RUNNING:
        await _admit(conn, workspace.owner_id, workspace_id, limits)
        changes |= used(workspace, now, by_person=by_person)
    return await _update_workspace(conn, workspace, changes, now, actor, "requested", REQUESTED[desired])


def used(workspace: Workspace, now: datetime, *, by_person: bool) -> dict[str, Any]:
    """Return the columns that a use changes. A program's use leaves the last use by a person."""
    person = now if by_person else workspace.person_access_at or workspace.last_access_at
    return {"last_access_at": now, "person_access_at": person}


async def change_holds(
    conn: AsyncConnection,
    workspace: Workspace,
    changes: Mapping[str, Any],
    now: datetime,
    *,
    actor: str | None = None,
    event: str = "",
    message: str = "",
) -> Workspace:
    """Record that a command, a lease or high CPU use of a locked workspace begins, changes or ends.

    A TTL that was decided before then fails its comparison. `changes` are further columns, such as
    `used(...)`. Without an actor, the timeline gets no entry.
    """
    values = {**changes, "holds_changed_at": now}
    return await _update_workspace(conn, workspace, values, now, actor, event, message)


async def apply_expiry(
    conn: AsyncConnection, seen: Workspace, desired: DesiredState, sentence: str, *, now: datetime
) -> Workspace | None:
    """Set desired_state for a TTL, or return None if the workspace has changed since `seen`.

    A command, a lease or high CPU use that began since then has moved holds_changed_at.
    """
    workspace = await lock_workspace(conn, seen.id)
    decided_on = ("desired_state", "phase", "phase_changed_at", "last_access_at", "person_access_at",
                  "holds_changed_at", "keep_until", "operation", "deleted_at", "standby_ttl_seconds",
                  "archive_ttl_seconds", "request")  # fmt: skip
    if any(getattr(workspace, name) != getattr(seen, name) for name in decided_on):
        return None
    return await _update_workspace(
        conn, workspace, {"desired_state": desired.value}, now, "ttl", "expired", sentence
    )


async def stop_for_disk(
    conn: AsyncConnection, workspace_id: str, running_since: datetime, message: str, *, now: datetime
) -> Workspace | None:
    """Stop a workspace for the disk watchdog, regardless of activity.

    Return None if it no longer runs as it did, or if something else was requested.
    """
    workspace = await lock_workspace(conn, workspace_id)
    if not allowed_changes.may_stop_for_disk(workspace) or workspace.phase_changed_at != running_since:
        return None
    changes = {"desired_state": DesiredState.STANDBY.value}
    return await _update_workspace(conn, workspace, changes, now, "disk", "stopped", message)


async def delete(conn: AsyncConnection, workspace_id: str, *, actor: str, now: datetime) -> Workspace:
    workspace = await lock_workspace(conn, workspace_id)
    allowed_changes.check_delete(workspace)
    changes = {"desired_state": DesiredState.DELETED.value, "deleted_at": now, "request": None}
    return await _update_workspace(conn, workspace, changes, now, actor, "deleted", "Moved to the trash.")


async def delete_now(
    conn: AsyncConnection, workspace_id: str, confirmed_name: str, *, actor: str, now: datetime
) -> Workspace:
    """Delete a workspace, also from the trash, without an archive and without a grace period."""
    workspace = await lock_workspace(conn, workspace_id)
    if not allowed_changes.check_delete_now(workspace, confirmed_name):
        return workspace
    changes = {
        "desired_state": DesiredState.DELETED.value,
        "deleted_at": workspace.deleted_at or now,
        "grace_waived_at": now,
        "request": None,
    }
    message = "Deleted for good, without an archive: its home and all its archives are removed."
    return await _update_workspace(conn, workspace, changes, now, actor, "deleted", message)


async def undelete(
    conn: AsyncConnection,
    workspace_id: str,
    *,
    actor: str,
    limits: Limits,
    now: datetime,
    by_person: bool = True,
) -> Workspace:
    await _lock_limits(conn)
    workspace = await lock_workspace(conn, workspace_id)
    desired = allowed_changes.check_undelete(workspace)
    admit_undeleted(await _count_owned(conn, workspace.owner_id), limits)
    if desired is DesiredState.RUNNING:
        await _admit(conn, workspace.owner_id, workspace_id, limits)
    changes = {
        "desired_state": desired.value,
        "deleted_at": None,
        "grace_waived_at": None,
        **used(workspace, now, by_person=by_person),
    }
    return await _update_workspace(
        conn, workspace, changes, now, actor, "undeleted", "Restored from the trash."
    )


async def recover(
    conn: AsyncConnection,
    workspace_id: str,
    *,
    actor: str,
    limits: Limits,
    source: RecoverFrom | None,
    now: datetime,
    by_person: bool = True,
) -> Workspace:
    await _lock_limits(conn)
    workspace = await lock_workspace(conn, workspace_id)
    kind = source.source if source else None
    archive_op_id = source.archive_op_id if source else None
    allowed_changes.check_recover(workspace, kind, archive_op_id)
    if archive_op_id is not None:
        await _check_archive(conn, workspace_id, archive_op_id)
    if workspace.desired_state is DesiredState.RUNNING:
        await _admit(conn, workspace.owner_id, workspace_id, limits)
    request = PendingRequest(RequestKind.RECOVER, actor, kind, archive_op_id)
    changes = {"request": request, **used(workspace, now, by_person=by_person)}
    return await _update_workspace(conn, workspace, changes, now, actor, "recover", "Recovery requested.")


async def restore(
    conn: AsyncConnection, workspace_id: str, archive_op_id: str, *, actor: str, now: datetime
) -> Workspace:
    """Request a restore of a chosen archive. The controller archives the present home first (ADR 0038)."""
    workspace = await lock_workspace(conn, workspace_id)
    if not allowed_changes.check_restore(workspace, archive_op_id):
        return workspace
    await _check_archive(conn, workspace_id, archive_op_id)
    request = PendingRequest(RequestKind.RESTORE, actor, archive_op_id=archive_op_id)
    changes = {"request": request, "last_access_at": now}
    message = f"Restore of the archive {archive_op_id} requested."
    return await _update_workspace(conn, workspace, changes, now, actor, "restore", message)


async def cancel(conn: AsyncConnection, workspace_id: str, *, actor: str, now: datetime) -> Workspace:
    workspace = await lock_workspace(conn, workspace_id)
    allowed_changes.check_cancel(workspace)
    request = PendingRequest(RequestKind.CANCEL, actor)
    message = "Cancel requested."
    return await _update_workspace(conn, workspace, {"request": request}, now, actor, "cancel", message)


async def extend(
    conn: AsyncConnection,
    workspace_id: str,
    *,
    by: timedelta,
    defaults: TtlDefaults,
    actor: str,
    now: datetime,
    by_person: bool = True,
) -> Workspace:
    """Postpone the current deadline. Calls add up.

    A person who extends it has not used it, but takes responsibility for it, as if by a use.
    """
    workspace = await lock_workspace(conn, workspace_id)
    allowed_changes.check_alive(workspace)
    until = extended(workspace, defaults, by, now, by_person=by_person)
    if until <= now:
        raise InvalidState(
            "No person has used this workspace for so long that a program cannot extend it. A person can, "
            "in the dashboard."
        )
    message = f"Kept until {until:%Y-%m-%d %H:%M} UTC."
    changes = {"keep_until": until} | ({"person_access_at": now} if by_person else {})
    return await _update_workspace(conn, workspace, changes, now, actor, "extended", message)


async def edit(
    conn: AsyncConnection, workspace_id: str, changes: Mapping[str, Any], *, now: datetime
) -> Workspace:
    """Change name, description, memo, TTLs, or the CPU use that keeps it awake."""
    unknown = set(changes) - EDITABLE
    if unknown:
        raise ValueError(f"not editable: {', '.join(sorted(unknown))}")
    workspace = await lock_workspace(conn, workspace_id)
    allowed_changes.check_alive(workspace)
    return await _update_workspace(conn, workspace, changes, now, actor=None)


CONSUME_REQUEST = """
    UPDATE workspaces SET request = NULL, desired_state = coalesce($2, desired_state), updated_at = $3
    WHERE id = $1 RETURNING version
"""
"""Clears a request that the controller has taken, and sets the desired state after a cancel."""


async def purge(conn: AsyncConnection, workspace_id: str, deleted_before: datetime, *, now: datetime) -> bool:
    """Purge a deleted workspace, which can then not be restored.

    Return False if it was undeleted, or if its grace period is neither over nor waived.
    """
    c = workspaces.c
    done = await conn.execute(
        update(workspaces)
        .where(
            c.id == workspace_id,
            or_(c.deleted_at <= deleted_before, c.grace_waived_at.is_not(None)),
            c.purged_at.is_(None),
            c.phase == Phase.DELETED.value,
            c.operation == Operation.NONE.value,
        )
        .values(purged_at=now, updated_at=now)
    )
    return done.rowcount == 1


ADVANCE_LAST_ACCESS = """
    UPDATE workspaces
    SET last_access_at = greatest(last_access_at, seen.at),
        person_access_at = greatest(person_access_at, seen.at)
    FROM unnest(CAST(:ids AS text[]), CAST(:times AS timestamptz[])) AS seen (id, at)
    WHERE workspaces.id = seen.id AND (last_access_at < seen.at OR person_access_at < seen.at)
"""
"""Activity at the gateway is use by a person. A program may have used the workspace later."""


async def advance_last_access(conn: AsyncConnection, seen: Mapping[str, datetime]) -> None:
    """Write activity to last_access_at and person_access_at, which only move forward."""
    await conn.execute(text(ADVANCE_LAST_ACCESS), {"ids": list(seen), "times": list(seen.values())})


RESET_IDLE_TIME = """
    WITH done AS (
        UPDATE workspaces SET last_access_at = $1, person_access_at = $1
        WHERE id IN (
            SELECT id FROM workspaces
            WHERE phase = 'RUNNING' AND last_access_at < $1 ORDER BY id LIMIT $2 FOR UPDATE
        )
        RETURNING 1
    )
    SELECT count(*) FROM done
"""
"""`reset_idle_time` as plain SQL, for a gateway worker that has no engine.

person_access_at moves too, because the uses that may be unknown are those of persons.
"""


async def reset_idle_time(conn: AsyncConnection, now: datetime, most: int) -> int:
    """Reset the idle time of RUNNING workspaces whose last use may be unknown; return how many."""
    c = workspaces.c
    some = select(c.id).where(c.phase == Phase.RUNNING.value, c.last_access_at < now).limit(most)
    restarted = {"last_access_at": now, "person_access_at": now}
    done = await conn.execute(update(workspaces).where(c.id.in_(some)).values(**restarted))
    return done.rowcount


async def _update_workspace(
    conn: AsyncConnection,
    workspace: Workspace,
    changes: Mapping[str, Any],
    now: datetime,
    actor: str | None,
    event: str = "",
    message: str = "",
) -> Workspace:
    row = (
        (
            await conn.execute(
                update(workspaces)
                .where(workspaces.c.id == workspace.id)
                .values(**column_values(changes), updated_at=now)
                .returning(*COLUMNS)
            )
        )
        .mappings()
        .one()
    )
    if actor is not None:
        await timeline.record(conn, workspace.id, now, actor=actor, event=event, message=message)
    return to_workspace(row)


async def _check_archive(conn: AsyncConnection, workspace_id: str, archive_op_id: str) -> None:
    found = await conn.scalar(
        select(archives.c.archive_op_id).where(
            archives.c.workspace_id == workspace_id,
            archives.c.archive_op_id == archive_op_id,
            archives.c.removed_at.is_(None),
        )
    )
    if found is None:
        raise ValidationFailed("This workspace has no such archive.")


async def _lock_limits(conn: AsyncConnection) -> None:
    """Serialise admissions. The lock is taken before any row lock, so that two cannot deadlock."""
    await hold_lock(conn, AdvisoryLock.LIMITS)


async def _count_owned(conn: AsyncConnection, owner_id: str) -> WorkspaceCounts:
    c = workspaces.c
    owned = select(func.count()).where(c.owner_id == owner_id)
    living = owned.where(c.deleted_at.is_(None)).scalar_subquery()
    trash = owned.where(text(TRASH)).scalar_subquery()
    return WorkspaceCounts(*(await conn.execute(select(living, trash))).one())


async def _admit(conn: AsyncConnection, owner_id: str, workspace_id: str, limits: Limits) -> None:
    await _lock_limits(conn)
    admit_running(await usage(conn, owner_id, besides=workspace_id), limits)


async def usage(conn: AsyncConnection, owner_id: str, *, besides: str = "") -> Usage:
    """Return how many workspaces count against the limits."""
    c = workspaces.c
    counted = select(func.count().filter(c.owner_id == owner_id), func.count()).where(
        text(COUNTED), c.id != besides
    )
    mine, everyone = (await conn.execute(counted)).one()
    return Usage(mine, everyone)
