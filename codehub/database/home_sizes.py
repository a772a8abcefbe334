"""Sizes of homes, and notices about the disk. Only the disk watchdog writes them."""

from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from sqlalchemy import update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.database.row_mapping import Row
from codehub.database.tables import home_sizes
from codehub.domain.disk import HomeRecord, HomeSize, LargeEntry, LiveHome, Notice
from codehub.domain.states import Phase

_COLUMNS: Final = (
    "bytes", "entries", "complete", "largest", "quota_bytes",
    "measured_at", "notice", "warned_at", "stopped_at",
)  # fmt: skip

LIVE_HOMES: Final = f"""
    SELECT id, number, home_store_key, phase, phase_changed_at,
           (phase = 'RUNNING' AND desired_state = 'RUNNING' AND operation = 'NONE'
            AND request IS NULL AND deleted_at IS NULL) AS may_stop,
           h.workspace_id, {", ".join(f"h.{name}" for name in _COLUMNS)}
    FROM workspaces LEFT JOIN home_sizes h ON h.workspace_id = id
    WHERE phase IN ('RUNNING', 'STANDBY')
"""  # noqa: S608 - the table's own columns
"""Reads every home of a workspace that is RUNNING or STANDBY, with its last measurement.

`may_stop` is `allowed_changes.may_stop_for_disk` as SQL. The gate checks it again with the row
locked.
"""


def to_live_home(row: Row) -> LiveHome:
    return LiveHome(
        workspace_id=row["id"],
        number=row["number"],
        home_store_key=row["home_store_key"],
        phase=Phase(row["phase"]),
        phase_changed_at=row["phase_changed_at"],
        may_stop=row["may_stop"],
        record=to_record({name: row[name] for name in ("workspace_id", *_COLUMNS)}),
    )


def to_record(row: Mapping[str, Any]) -> HomeRecord | None:
    """Return the measurement in a row of a left join, or None if there is none."""
    if row["workspace_id"] is None:
        return None
    largest = tuple(LargeEntry(item["name"], item["bytes"]) for item in row["largest"] or ())
    size = HomeSize(row["bytes"], row["entries"], row["complete"], largest, row["quota_bytes"])
    return HomeRecord(size, row["measured_at"], row["notice"], row["warned_at"], row["stopped_at"])


async def record_sizes(conn: AsyncConnection, sizes: Mapping[str, HomeSize], now: datetime) -> None:
    statement = insert(home_sizes)
    names = ("bytes", "entries", "complete", "largest", "quota_bytes", "measured_at")
    excluded = {name: statement.excluded[name] for name in names}
    await conn.execute(
        statement.on_conflict_do_update(index_elements=["workspace_id"], set_=excluded),
        [{"workspace_id": name, **_values(size), "measured_at": now} for name, size in sizes.items()],
    )


async def put_notice(conn: AsyncConnection, notice: Notice, **times: datetime) -> None:
    """Set the notice of a workspace and `warned_at` or `stopped_at`."""
    values = {"notice": notice.message, **times}
    statement = insert(home_sizes).values(workspace_id=notice.workspace_id, **values)
    await conn.execute(statement.on_conflict_do_update(index_elements=["workspace_id"], set_=values))


async def clear_notices(conn: AsyncConnection, workspace_ids: Collection[str]) -> None:
    chosen = home_sizes.c.workspace_id.in_(list(workspace_ids))
    await conn.execute(update(home_sizes).where(chosen).values(notice=None, warned_at=None, stopped_at=None))


def _values(size: HomeSize) -> dict[str, Any]:
    return {**asdict(size), "largest": [asdict(entry) for entry in size.largest]}
