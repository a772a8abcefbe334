"""Read-only queries about commands."""

from collections.abc import Collection
from typing import Any, Final

from sqlalchemy import RowMapping, Text, and_, case, cast, func, literal, not_, select, text, true
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.database.index_predicates import ALIVE_EXECS
from codehub.database.tables import Json, execs, workspaces
from codehub.domain.execs import KEY_LIFETIME, Exec, ExecState
from codehub.domain.states import DesiredState, Operation, Phase

EXEC_COLUMNS: Final = tuple(execs.columns)
MOST_LISTED: Final = 500
LISTED_COMMAND_BYTES: Final = 1 << 10
"""A longer command, as JSON, is left out of lists: 500 of the longest take 50 MB."""
_WITHOUT_COMMAND: Final = tuple(column for column in EXEC_COLUMNS if column is not execs.c.command)
_NO_COMMAND: Final = literal([], Json)
_IS_LONG: Final = func.octet_length(cast(execs.c.command, Text)) > LISTED_COMMAND_BYTES
_SHORT_COMMAND: Final = (
    case((_IS_LONG, _NO_COMMAND), else_=execs.c.command).label("command"),
    _IS_LONG.label("command_omitted"),
)


def to_exec(row: RowMapping) -> Exec:
    values: dict[str, Any] = {column.name: row[column.name] for column in EXEC_COLUMNS}
    omitted: bool = row.get("command_omitted", False)
    return Exec(**{**values, "state": ExecState(row["state"])}, command_omitted=omitted)


async def find(conn: AsyncConnection, workspace_id: str, exec_id: str) -> Exec | None:
    query = select(*EXEC_COLUMNS).where(execs.c.id == exec_id, execs.c.workspace_id == workspace_id)
    row = (await conn.execute(query)).mappings().one_or_none()
    return None if row is None else to_exec(row)


async def has_key(conn: AsyncConnection, workspace_id: str, actor_id: str, key: str) -> bool:
    """Return whether an actor has started a command of a workspace with this key within a day."""
    c = execs.c
    mine = (c.workspace_id == workspace_id, c.actor_id == actor_id, c.key == key)
    query = select(c.id).where(*mine, c.created_at > func.now() - KEY_LIFETIME)
    return (await conn.execute(query)).first() is not None


async def newest(conn: AsyncConnection, workspace_id: str) -> list[Exec]:
    """Return the newest commands of a workspace, newest first, without those that are long."""
    query = select(*_WITHOUT_COMMAND, *_SHORT_COMMAND).where(execs.c.workspace_id == workspace_id)
    rows = await conn.execute(query.order_by(execs.c.id.desc()).limit(MOST_LISTED))
    return [to_exec(row) for row in rows.mappings()]


async def alive(conn: AsyncConnection, instance_backend: str) -> list[Exec]:
    """Return the rows of the commands that may run on a runtime, without what they run."""
    query = (
        select(*_WITHOUT_COMMAND, _NO_COMMAND.label("command"), true().label("command_omitted"))
        .join(workspaces, workspaces.c.id == execs.c.workspace_id)
        .where(text(ALIVE_EXECS), workspaces.c.instance_backend == instance_backend)
    )
    return [to_exec(row) for row in (await conn.execute(query)).mappings()]


async def with_output(conn: AsyncConnection, exec_ids: Collection[str]) -> set[str]:
    """Return which of these commands have a row, and output that is to be kept."""
    query = select(execs.c.id).where(execs.c.id.in_(exec_ids), execs.c.output_removed.is_(False))
    return set((await conn.execute(query)).scalars())


async def with_home(conn: AsyncConnection, workspace_ids: Collection[str]) -> set[str]:
    """Return which of these workspaces exist and are neither archived nor deleted, or are changing."""
    c = workspaces.c
    at_rest = and_(
        c.phase.in_((Phase.ARCHIVED.value, Phase.DELETED.value)),
        c.operation == Operation.NONE.value,
        c.desired_state != DesiredState.RUNNING.value,
    )
    query = select(c.id).where(c.id.in_(workspace_ids), not_(at_rest))
    return set((await conn.execute(query)).scalars())
