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
    KEYS_PER_WORKSPACE,
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
_HAS_KEY = "key IS NOT NULL AND created_at > :keys_since"
"""The same key still answers with the command, so its row stays. Only its output is removed."""
_REMOVE = """
    , marked AS (
        UPDATE execs SET output_removed = true
        WHERE id = ANY(ARRAY(SELECT id FROM excess WHERE has_key)) AND NOT output_removed
    ), removed AS (
        DELETE FROM execs WHERE id = ANY(ARRAY(SELECT id FROM excess WHERE NOT has_key))
    )
    SELECT count(*) FROM excess
"""
FORGET_OLDEST: Final = f"""
    WITH ended AS (
        SELECT id, {_HAS_KEY} AS has_key, row_number() OVER newest AS place,
            sum(CASE WHEN output_removed THEN 0
                ELSE least(stdout_bytes, :window) + least(stderr_bytes, :window) END) OVER newest AS bytes
        FROM execs
        WHERE workspace_id = :id AND state NOT IN ('starting', 'running')
        WINDOW newest AS (ORDER BY id DESC)
    ), excess AS (
        SELECT id, has_key FROM ended WHERE place >= :most OR bytes > :bytes
    ) {_REMOVE}
"""  # noqa: S608 - the constants above
"""Leaves room for one more. `window` is what is kept of each stream."""
REMOVE_EXPIRED: Final = f"""
    WITH excess AS (
        SELECT id, {_HAS_KEY} AS has_key FROM execs
        WHERE ended_at < :before AND NOT ({_HAS_KEY} AND output_removed)
        ORDER BY ended_at LIMIT :most
    ) {_REMOVE}
"""  # noqa: S608 - the constants above


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
    if new.key is not None:
        await _check_key_count(conn, workspace.id, now)
    await _forget_oldest(conn, workspace.id, output_bytes, now)
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


async def _check_key_count(conn: AsyncConnection, workspace_id: str, now: datetime) -> None:
    """Reject one key too many. The rows of commands with a key cannot make room within a day."""
    c = execs.c
    recent = (c.workspace_id == workspace_id, c.key.is_not(None), c.created_at > now - KEY_LIFETIME)
    if (await conn.scalar(select(func.count()).where(*recent)) or 0) >= KEYS_PER_WORKSPACE:
        raise TooManyRequests(
            f"key: {KEYS_PER_WORKSPACE} commands with a key were started in this workspace within a day. "
            "Delete some of them, or start commands without a key.",
            retry_after=60,
        )


async def _forget_oldest(conn: AsyncConnection, workspace_id: str, output_bytes: int, now: datetime) -> None:
    values = {"id": workspace_id, "most": KEPT_PER_WORKSPACE, "bytes": KEPT_BYTES_PER_WORKSPACE}
    values |= {"window": output_bytes}
    await conn.execute(text(FORGET_OLDEST), {**values, "keys_since": now - KEY_LIFETIME})


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


async def remove_expired(conn: AsyncConnection, ended_before: datetime, now: datetime) -> int:
    """Forget some commands that ended before a time; return how many. The rows of recent keys stay."""
    values = {"before": ended_before, "most": ROWS_AT_ONCE, "keys_since": now - KEY_LIFETIME}
    return await conn.scalar(text(REMOVE_EXPIRED), values) or 0


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
