"""Read-only queries about workspaces, for the API and the gateway."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, TypeVar

from sqlalchemy import (
    ColumnElement,
    RowMapping,
    Select,
    all_,
    bindparam,
    func,
    null,
    select,
    text,
    tuple_,
    union_all,
)
from sqlalchemy.dialects.postgresql import array
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.database.holds import read_holds
from codehub.database.home_sizes import to_record
from codehub.database.index_predicates import COUNTED, FAILED
from codehub.database.row_mapping import COLUMNS, to_workspace
from codehub.database.tables import archives, home_sizes, leadership, timeline, users, workspaces
from codehub.domain.archive_keys import archive_op_id_of
from codehub.domain.awake import NO_HOLDS, Holds
from codehub.domain.disk import HomeRecord
from codehub.domain.states import Phase
from codehub.domain.workspace import Workspace

TIMELINE_LENGTH = 200
ERRORS_SHOWN = 50
ARCHIVE_COLUMNS = (archives.c.archive_op_id, archives.c.created_at, archives.c.bytes)


@dataclass(frozen=True)
class OwnedWorkspace:
    """Workspace with its owner's name, and its home without the largest entries."""

    workspace: Workspace
    owner_name: str
    home: HomeRecord | None
    holds: Holds
    """What keeps it awake. Without any unless it is RUNNING."""


@dataclass(frozen=True)
class DetailedWorkspace(OwnedWorkspace):
    """Workspace with its memo, its current archive and the largest entries of its home."""

    memo: str
    archive: "RestorableArchive | None"


@dataclass(frozen=True)
class WorkspaceFilter:
    """Filter for lists: the workspaces of one owner or of all (None), in use or in the trash.

    The name, the description or, for one owner, the memo contains each of the words. `among` leaves
    out all other workspaces, unless it is None.
    """

    owner_id: str | None
    phase: Phase | None = None
    search_words: tuple[str, ...] = ()
    trash: bool = False
    among: Collection[str] | None = None


@dataclass(frozen=True)
class TimelineEntry:
    at: datetime
    actor: str
    event: str
    message: str
    operation: str | None


@dataclass(frozen=True)
class RestorableArchive:
    archive_op_id: str
    created_at: datetime
    bytes: int
    current: bool


@dataclass(frozen=True)
class LeaderStatus:
    holder: str
    epoch: int
    heartbeat_at: datetime | None
    heartbeat_age: float | None


@dataclass(frozen=True)
class Overview:
    phases: dict[Phase, int]
    users: int
    leader: LeaderStatus | None
    errors: list[OwnedWorkspace]


def _owned(*, detailed: bool = False) -> Select[Any]:
    """Select workspaces; lists leave out memos and the largest entries of homes, which are long."""
    largest = home_sizes.c.largest if detailed else null()
    sizes = [
        (largest if column.name == "largest" else column).label(f"home_{column.name}")
        for column in home_sizes.c
    ]
    query = (
        select(*COLUMNS, users.c.username.label("owner_name"), *sizes)
        .join(users, users.c.id == workspaces.c.owner_id)
        .outerjoin(home_sizes, home_sizes.c.workspace_id == workspaces.c.id)
    )
    if not detailed:
        return query
    stored = [column.label(f"stored_{column.name}") for column in ARCHIVE_COLUMNS]
    return query.add_columns(workspaces.c.memo, *stored).outerjoin(
        archives, archives.c.archive_key == workspaces.c.archive_key
    )


def _to_owned(row: RowMapping) -> OwnedWorkspace:
    home = to_record({column.name: row[f"home_{column.name}"] for column in home_sizes.c})
    return OwnedWorkspace(to_workspace(row), row["owner_name"], home, NO_HOLDS)


Owned = TypeVar("Owned", bound=OwnedWorkspace)


async def _with_holds(conn: AsyncConnection, found: Sequence[Owned]) -> list[Owned]:
    """Add the holds of those that run, in one query for all."""
    running = [owned.workspace.id for owned in found if owned.workspace.phase is Phase.RUNNING]
    holds = await read_holds(conn, running)
    return [replace(owned, holds=holds.get(owned.workspace.id, NO_HOLDS)) for owned in found]


_WORKSPACE: Final = select(*COLUMNS).where(
    workspaces.c.id == bindparam("workspace_id"), workspaces.c.purged_at.is_(None)
)
"""Built once: to build it takes as long as to execute it."""


async def find_workspace(conn: AsyncConnection, workspace_id: str) -> Workspace | None:
    """Return the workspace as `find` does, without what belongs to it."""
    row = (await conn.execute(_WORKSPACE, {"workspace_id": workspace_id})).mappings().one_or_none()
    return None if row is None else to_workspace(row)


async def find(conn: AsyncConnection, workspace_id: str) -> DetailedWorkspace | None:
    """Return the workspace, deleted or not, or None if it is purged or unknown."""
    query = _owned(detailed=True).where(workspaces.c.id == workspace_id, workspaces.c.purged_at.is_(None))
    row = (await conn.execute(query)).mappings().one_or_none()
    if row is None:
        return None
    owned = _to_owned(row)
    memo, archive = row["memo"], _to_archive(row)
    detailed = DetailedWorkspace(owned.workspace, owned.owner_name, owned.home, NO_HOLDS, memo, archive)
    return (await _with_holds(conn, [detailed]))[0]


def _to_archive(row: RowMapping) -> RestorableArchive | None:
    if row["stored_archive_op_id"] is None:
        return None
    return RestorableArchive(
        **{column.name: row[f"stored_{column.name}"] for column in ARCHIVE_COLUMNS}, current=True
    )


async def find_living(
    conn: AsyncConnection, owner_id: str, workspace_ids: tuple[str, ...]
) -> list[OwnedWorkspace]:
    """Return those of these workspaces that the user owns and has not deleted."""
    query = _owned().where(
        workspaces.c.owner_id == owner_id,
        workspaces.c.id.in_(workspace_ids),
        workspaces.c.deleted_at.is_(None),
    )
    return await _read_owned(conn, query)


async def _read_owned(conn: AsyncConnection, query: Select[Any]) -> list[OwnedWorkspace]:
    return await _with_holds(conn, [_to_owned(row) for row in (await conn.execute(query)).mappings()])


async def list_living(
    conn: AsyncConnection,
    owner_id: str,
    limit: int,
    after: Workspace | None = None,
    *,
    among: Collection[str] | None = None,
) -> list[OwnedWorkspace]:
    """Return the user's workspaces that are not deleted, newest first, starting after `after`.

    `among` leaves out all other workspaces, unless it is None.

    The sort key of a workspace never changes, so pages that are read at different times neither
    repeat nor skip one.
    """
    c = workspaces.c
    query = _owned().where(c.owner_id == owner_id, c.deleted_at.is_(None))
    if among is not None:
        query = query.where(c.id.in_(among))
    if after is not None:
        query = query.where(tuple_(c.created_at, c.number) < tuple_(after.created_at, after.number))
    return await _read_owned(conn, query.order_by(c.created_at.desc(), c.number.desc()).limit(limit))


async def count_running(conn: AsyncConnection, owner_id: str, among: Collection[str]) -> int:
    """Return how many of these workspaces of the user count against the limits."""
    c = workspaces.c
    counted = select(func.count()).where(text(COUNTED), c.owner_id == owner_id, c.id.in_(among))
    return await conn.scalar(counted) or 0


async def list_page(
    conn: AsyncConnection, selection: WorkspaceFilter, limit: int, offset: int
) -> tuple[list[OwnedWorkspace], int]:
    """Return one page, and the number of workspaces on all pages."""
    conditions = _conditions(selection)
    query = _owned().where(*conditions).order_by(*_newest_first(selection)).limit(limit).offset(offset)
    items = await _read_owned(conn, query)
    if len(items) < limit and (items or not offset):
        return items, offset + len(items)
    total = await conn.scalar(select(func.count()).select_from(workspaces).where(*conditions))
    return items, total or 0


def _conditions(selection: WorkspaceFilter) -> list[ColumnElement[bool]]:
    c = workspaces.c
    found: list[ColumnElement[bool]] = (
        [c.deleted_at.is_not(None), c.purged_at.is_(None)] if selection.trash else [c.deleted_at.is_(None)]
    )
    if selection.owner_id is not None:
        found.append(c.owner_id == selection.owner_id)
    if selection.among is not None:
        found.append(c.id.in_(selection.among))
    if selection.phase is not None:
        found.append(c.phase == selection.phase.value)
    if selection.search_words:
        found.append(_contains(selection))
    return found


def _contains(selection: WorkspaceFilter) -> ColumnElement[bool]:
    """Match all words, in one comparison: PostgreSQL then converts each text to lower case once.

    Memos are searched in lists of one owner only: those of all users are too many.
    """
    c = workspaces.c
    texts = c.name + "\n" + c.description
    if selection.owner_id is not None:
        texts = texts + "\n" + c.memo
    patterns = [func.lower(f"%{_LIKE_SPECIAL.sub(_ESCAPED, word)}%") for word in selection.search_words]
    return func.lower(texts).like(all_(array(patterns)))


_LIKE_SPECIAL = re.compile(r"[\\%_]")
_ESCAPED = r"\\\g<0>"


def _newest_first(selection: WorkspaceFilter) -> tuple[ColumnElement[Any], ...]:
    c = workspaces.c
    return ((c.deleted_at if selection.trash else c.created_at).desc(), c.number.desc())


async def timeline_of(conn: AsyncConnection, workspace_id: str) -> list[TimelineEntry]:
    """Return the newest entries, newest first."""
    c = timeline.c
    rows = await conn.execute(
        select(c.at, c.actor, c.event, c.message, c.operation)
        .where(c.workspace_id == workspace_id)
        .order_by(c.id.desc())
        .limit(TIMELINE_LENGTH)
    )
    return [TimelineEntry(row.at, row.actor, row.event, row.message, row.operation) for row in rows]


async def archives_of(conn: AsyncConnection, workspace: Workspace) -> list[RestorableArchive]:
    """Return the archives that can be restored, newest first."""
    c = archives.c
    current = archive_op_id_of(workspace.archive_key) if workspace.archive_key else None
    rows = await conn.execute(
        select(c.archive_op_id, c.created_at, c.bytes)
        .where(c.workspace_id == workspace.id, c.removed_at.is_(None))
        .order_by(c.created_at.desc(), c.archive_op_id.desc())
    )
    return [
        RestorableArchive(row.archive_op_id, row.created_at, row.bytes, row.archive_op_id == current)
        for row in rows
    ]


async def read_leader(conn: AsyncConnection) -> LeaderStatus | None:
    """Return the leader with the age of its heartbeat, or None before the first election."""
    age = func.extract("epoch", func.now() - leadership.c.heartbeat_at).label("age")
    row = (await conn.execute(select(leadership, age))).first()
    if row is None or row.holder is None:
        return None
    return LeaderStatus(row.holder, row.epoch, row.heartbeat_at, None if row.age is None else float(row.age))


async def read_overview(conn: AsyncConnection) -> Overview:
    c = workspaces.c
    user_count = await conn.scalar(
        select(func.count()).select_from(users).where(users.c.deleted_at.is_(None))
    )
    failing = _owned().where(text(FAILED)).order_by(c.phase_changed_at.desc())
    errors = await _read_owned(conn, failing.limit(ERRORS_SHOWN))
    return Overview(await _count_phases(conn), user_count or 0, await read_leader(conn), errors)


async def _count_phases(conn: AsyncConnection) -> dict[Phase, int]:
    """Count workspaces by phase: those in use and the trash, each through its own index."""
    c = workspaces.c
    counted = select(c.phase, func.count().label("n")).group_by(c.phase)
    trash = counted.where(c.deleted_at.is_not(None), c.purged_at.is_(None))
    found = dict.fromkeys(Phase, 0)
    for row in await conn.execute(union_all(counted.where(c.deleted_at.is_(None)), trash)):
        found[Phase(row.phase)] += row.n
    return found


async def image_refs(conn: AsyncConnection) -> dict[str, int]:
    """Return how many workspaces that are not deleted use each image."""
    c = workspaces.c
    counted = select(c.image_ref, func.count().label("n")).where(c.deleted_at.is_(None)).group_by(c.image_ref)
    return {row.image_ref: row.n for row in await conn.execute(counted)}
