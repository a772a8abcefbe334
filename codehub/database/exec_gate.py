"""The part of the gate for commands: the only writer of their rows (contract 3).

Each function runs in its caller's transaction. Those that begin or end a command lock the row of its
workspace first: what keeps a workspace awake changes together with `holds_changed_at`, so that a TTL
decision made before fails its comparison.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from sqlalchemy import case, delete, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.database import gate, timeline
from codehub.database.exec_queries import EXEC_COLUMNS, to_exec
from codehub.database.index_predicates import ALIVE_EXECS
from codehub.database.tables import execs, workspaces
from codehub.domain.execs import (
    ALIVE,
    KEPT_BYTES_PER_WORKSPACE,
    KEPT_PER_WORKSPACE,
    KEY_LIFETIME,
    Exec,
    ExecState,
    check_runs_commands,
)
from codehub.domain.problems import InvalidState, TooManyRequests
from codehub.domain.states import Phase
from codehub.domain.timeline_text import commands_deleted, commands_started
from codehub.ulids import new_id

_ALIVE: Final = tuple(state.value for state in ALIVE)
ROWS_AT_ONCE: Final = 500
FORGET_OLDEST: Final = """
    DELETE FROM execs WHERE id = ANY(ARRAY(
        SELECT id FROM (
            SELECT id, row_number() OVER newest AS place,
                sum(least(stdout_bytes, :window) + least(stderr_bytes, :window)) OVER newest AS bytes
            FROM execs
            WHERE workspace_id = :id AND state NOT IN ('starting', 'running')
            WINDOW newest AS (ORDER BY id DESC)
        ) AS ended
        WHERE place >= :most OR bytes > :bytes
    ))
"""
"""Leaves room for one more. `window` is what is kept of each stream."""
REMOVE_EXPIRED: Final = """
    DELETE FROM execs WHERE id = ANY(ARRAY(
        SELECT id FROM execs WHERE ended_at < :before ORDER BY ended_at LIMIT :most
    ))
"""


@dataclass(frozen=True)
class ExecActor:
    """Who starts a command. `is_person` if a person does so in a browser."""

    id: str
    name: str
    is_person: bool


@dataclass(frozen=True)
class NewExec:
    workspace_id: str
    command: Sequence[str]
    cwd: str
    tty: bool
    timeout_seconds: float | None
    key: str | None
    body_hash: bytes | None
    """Hash of the request, if it has a key."""


async def insert_exec(
    conn: AsyncConnection, new: NewExec, actor: ExecActor, *, max_alive: int, output_bytes: int, now: datetime
) -> tuple[Exec, bool]:
    """Insert the row of a command that is about to start, and return it with True.

    The key of an earlier command returns that one, with False. A start counts as a use of the
    workspace. `output_bytes` is what is kept of each stream: the oldest ended commands make room.
    The timeline shows the starts of tokens, without the commands.
    """
    workspace = await gate.lock_workspace(conn, new.workspace_id)
    if new.key is not None and (earlier := await _find_by_key(conn, new, actor, now)) is not None:
        return earlier, False
    check_runs_commands(workspace)
    await _check_count(conn, workspace.owner_id, max_alive)
    await _forget_oldest(conn, workspace.id, output_bytes)
    made = await conn.execute(
        insert(execs)
        .values(
            id=new_id(),
            workspace_id=new.workspace_id,
            actor_id=actor.id,
            actor_name=actor.name,
            by_token=not actor.is_person,
            command=list(new.command),
            cwd=new.cwd,
            tty=new.tty,
            timeout_seconds=new.timeout_seconds,
            key=new.key,
            body_hash=new.body_hash,
            state=ExecState.STARTING.value,
            created_at=now,
            seen_at=now,
        )
        .returning(*EXEC_COLUMNS)
    )
    await gate.change_holds(conn, workspace, gate.used(workspace, now, by_person=actor.is_person), now)
    row = to_exec(made.mappings().one())
    if not actor.is_person:
        message = partial(commands_started, exec_id=row.id)
        await timeline.record_repeated(
            conn, workspace.id, now, actor=actor.name, event="command-started", message=message
        )
    return row, True


async def _find_by_key(conn: AsyncConnection, new: NewExec, actor: ExecActor, now: datetime) -> Exec | None:
    c = execs.c
    mine = (c.workspace_id == new.workspace_id, c.actor_id == actor.id, c.key == new.key)
    row = (await conn.execute(select(*EXEC_COLUMNS).where(*mine))).mappings().one_or_none()
    if row is None:
        return None
    found = to_exec(row)
    if now - found.created_at >= KEY_LIFETIME:
        await conn.execute(update(execs).where(c.id == found.id).values(key=None, body_hash=None))
        return None
    if found.body_hash != new.body_hash:
        raise InvalidState(
            "key: another command was started with this key within a day. Use a new key for a new command."
        )
    return found


async def _check_count(conn: AsyncConnection, owner_id: str, max_alive: int) -> None:
    """Reject one command too many. Two workspaces of a user may exceed the bound together, briefly."""
    owned = (
        select(func.count())
        .select_from(execs.join(workspaces))
        .where(workspaces.c.owner_id == owner_id, text(ALIVE_EXECS))
    )
    if (await conn.scalar(owned) or 0) >= max_alive:
        raise TooManyRequests(
            f"{max_alive} of your commands are running. Wait until some of them end, or end some.",
            retry_after=5,
        )


async def _forget_oldest(conn: AsyncConnection, workspace_id: str, output_bytes: int) -> None:
    values = {"id": workspace_id, "most": KEPT_PER_WORKSPACE, "bytes": KEPT_BYTES_PER_WORKSPACE}
    await conn.execute(text(FORGET_OLDEST), {**values, "window": output_bytes})


async def record_use(conn: AsyncConnection, workspace_id: str, *, by_person: bool, now: datetime) -> None:
    """Count input to a command as a use of its workspace."""
    workspace = await gate.lock_workspace(conn, workspace_id)
    used = gate.used(workspace, now, by_person=by_person)
    await conn.execute(update(workspaces).where(workspaces.c.id == workspace.id).values(**used))


async def save_refreshed(
    conn: AsyncConnection, row: Exec, changes: Mapping[str, object], *, now: datetime
) -> bool:
    """Save what was observed of a command; return False if its row is gone or has ended.

    Several access parts may refresh a row: an ended one stays as it is.
    """
    state = changes.get("state", row.state)
    assert isinstance(state, ExecState)
    workspace = None if state.is_alive else await gate.lock_workspace(conn, row.workspace_id)
    done = await conn.execute(
        update(execs)
        .where(execs.c.id == row.id, execs.c.state.in_(_ALIVE))
        .values(**{**changes, "state": state.value})
    )
    if done.rowcount and workspace is not None:
        await gate.change_holds(conn, workspace, {}, now)
    return done.rowcount == 1


async def forget(conn: AsyncConnection, row: Exec, actor: ExecActor, *, now: datetime) -> None:
    """Delete the row of a command. The coordinator then removes what is kept of it."""
    workspace = await gate.lock_workspace(conn, row.workspace_id)
    done = await conn.execute(delete(execs).where(execs.c.id == row.id))
    if row.state.is_alive:
        await gate.change_holds(conn, workspace, {}, now)
    if done.rowcount and not actor.is_person:
        message = partial(commands_deleted, exec_id=row.id)
        await timeline.record_repeated(
            conn, workspace.id, now, actor=actor.name, event="command-deleted", message=message
        )


async def remove_expired(conn: AsyncConnection, ended_before: datetime) -> int:
    """Delete some rows of commands that ended before a time; return how many."""
    done = await conn.execute(text(REMOVE_EXPIRED), {"before": ended_before, "most": ROWS_AT_ONCE})
    return done.rowcount


async def mark_archived_output(conn: AsyncConnection, exec_ids: Collection[str], now: datetime) -> list[str]:
    """Mark the output of commands as removed if their workspace is archived or deleted; return which."""
    c = execs.c
    gone = workspaces.c.phase.in_((Phase.ARCHIVED.value, Phase.DELETED.value))
    done = await conn.execute(
        update(execs)
        .where(c.id.in_(exec_ids), c.workspace_id == workspaces.c.id, gone)
        .values(
            output_removed=True,
            ended_at=func.coalesce(c.ended_at, now),
            state=case((c.state.in_(_ALIVE), ExecState.LOST.value), else_=c.state),
        )
        .returning(c.id)
    )
    return list(done.scalars())
