"""Mapping between rows of `workspaces` and the domain's Workspace."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final, TypeAlias

import asyncpg
import structlog
from sqlalchemy import RowMapping

from codehub.database.tables import workspaces
from codehub.domain.conditions import Condition, Conditions
from codehub.domain.observation import Generation, Progress
from codehub.domain.states import ConditionName, DesiredState, ErrorReason, Operation, Phase
from codehub.domain.workspace import PendingRequest, RecoverSource, RequestKind, Workspace

logger = structlog.get_logger(__name__)

COLUMNS: Final = tuple(column for column in workspaces.columns if column.name != "memo")
"""The columns that a Workspace holds."""

Row: TypeAlias = "RowMapping | asyncpg.Record"
"""A row of SQLAlchemy or of asyncpg."""


class CorruptRow(Exception):  # noqa: N818 - a fact about a row
    """Row with a value that this version of CodeHub does not support."""


def to_workspace(row: Row) -> Workspace:
    try:
        return _workspace(row)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptRow(f"workspace {row.get('id')}: {error!r}") from error


def to_workspaces(rows: Iterable[Row]) -> list[Workspace]:
    """Return the workspaces of all valid rows. A corrupt row is logged and left out."""
    found = []
    for row in rows:
        try:
            found.append(to_workspace(row))
        except CorruptRow as error:
            logger.error("a row cannot be understood and is left alone", error=str(error))
    return found


def _workspace(row: Row) -> Workspace:
    values: dict[str, Any] = {column.name: row[column.name] for column in COLUMNS}
    values["desired_state"] = DesiredState(row["desired_state"])
    values["phase"] = Phase(row["phase"])
    values["operation"] = Operation(row["operation"])
    values["error_reason"] = ErrorReason(row["error_reason"]) if row["error_reason"] else None
    values["conditions"] = _conditions(row["conditions"])
    values["request"] = _request(row["request"])
    values["progress"] = Progress(**row["progress"]) if row["progress"] else None
    values["home_ctx"] = Generation(**row["home_ctx"]) if row["home_ctx"] else None
    return Workspace(**values)


def _conditions(stored: Mapping[str, Mapping[str, str]]) -> Conditions:
    return {
        name: Condition(
            status=stored[name]["status"] == "True",
            reason=stored[name]["reason"],
            message=stored[name]["message"],
            last_transition_time=datetime.fromisoformat(stored[name]["last_transition_time"]),
        )
        for name in ConditionName
    }


def _request(stored: Mapping[str, str | None] | None) -> PendingRequest | None:
    if stored is None:
        return None
    source = stored.get("source")
    return PendingRequest(
        kind=RequestKind(str(stored["kind"])),
        actor=str(stored["actor"]),
        source=RecoverSource(source) if source else None,
        archive_op_id=stored.get("archive_op_id"),
    )


def conditions_json(conditions: Conditions) -> dict[str, dict[str, str]]:
    return {
        name.value: {
            "status": "True" if condition.status else "False",
            "reason": condition.reason,
            "message": condition.message,
            "last_transition_time": condition.last_transition_time.isoformat(),
        }
        for name, condition in conditions.items()
    }


def column_values(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Convert domain values to column values."""
    values = dict(changes)
    if "conditions" in values:
        values["conditions"] = conditions_json(values["conditions"])
    for name in ("request", "progress", "home_ctx"):
        if values.get(name) is not None:
            values[name] = asdict(values[name])
    return values
