"""The query for TTLs finds every workspace whose TTL has expired."""

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.database import ttl_queries
from codehub.database.row_mapping import conditions_json, to_workspaces
from codehub.database.tables import workspaces
from codehub.domain.conditions import initial_conditions
from codehub.domain.states import DesiredState, Operation, Phase
from codehub.domain.ttl import TtlDefaults, expired

NOW = datetime(2026, 3, 29, 1, 30, 0, 500, tzinfo=UTC)  # the hour that is skipped in Europe
MICROSECOND = timedelta(microseconds=1)
TTLS = (None, 0, 60, 86_400)
AGES = tuple(
    timedelta(seconds=seconds) + slip for seconds in (60, 86_400) for slip in (-MICROSECOND, 0 * MICROSECOND)
)
KEPT = (None, NOW, NOW + MICROSECOND)
STATES = tuple(
    (phase, desired, operation)
    for phase in (Phase.RUNNING, Phase.STANDBY, Phase.ARCHIVED)
    for desired in (DesiredState.RUNNING, DesiredState.STANDBY, DesiredState.DELETED)
    for operation in (Operation.NONE, Operation.STOPPING)
)


def rows() -> Iterator[dict[str, Any]]:
    grid = itertools.product(STATES, TTLS, AGES, KEPT)
    for number, ((phase, desired, operation), own, age, keep_until) in enumerate(grid):
        busy = operation is not Operation.NONE
        yield {
            "id": f"{number:026}",
            "owner_id": "one",
            "name": "a name",
            "image_ref": "code-server",
            "instance_backend": "process",
            "storage_backend": "local-dir",
            "home_store_key": str(number),
            "standby_ttl_seconds": own,
            "archive_ttl_seconds": own,
            "desired_state": desired.value,
            "deleted_at": NOW if desired is DesiredState.DELETED else None,
            "keep_until": keep_until,
            "last_access_at": NOW - age,
            "person_access_at": (None, NOW - age, NOW - AGES[-1])[number % 3],
            "conditions": conditions_json(initial_conditions(NOW)),
            "phase": phase.value,
            "phase_changed_at": NOW - age,
            "operation": operation.value,
            "op_id": "x" if busy else None,
            "op_started_at": NOW if busy else None,
            "created_at": NOW,
            "updated_at": NOW,
        }


@pytest.mark.parametrize("time_zone", ["UTC", "Europe/Berlin"])
async def test_every_expired_workspace_is_a_candidate(engine: AsyncEngine, time_zone: str) -> None:
    async with engine.begin() as conn:
        await conn.exec_driver_sql(f"SET TIME ZONE '{time_zone}'")
        await conn.execute(insert(workspaces), list(rows()))
        everything = to_workspaces((await conn.execute(select(workspaces))).mappings())
        for standby, archive, awake in itertools.product((0, 60, 86_400), (0, 60, 86_400), (0, 30, 86_340)):
            defaults = TtlDefaults(standby, archive, awake)
            due = {item.id for item in everything if expired(item, defaults, NOW, NOW) is not None}
            found = [item.id for item in await ttl_queries.candidates(conn, defaults, NOW)]
            assert due, "the grid has nothing to find"
            assert due <= set(found)
            assert len(found) == len(set(found))
            assert len(found) < len(everything) / 4
