"""Commands and leases that may keep workspaces awake, read in one query for many workspaces."""

from collections import defaultdict
from collections.abc import Collection
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.domain.awake import LONGEST_TIMEOUT, Command, Holds, Lease

HOLDS: Final = """
    SELECT workspace_id, NULL AS id, coalesce(started_at, created_at) AS started_at, seen_at,
        timeout_seconds, NULL AS actor_id, NULL AS actor_name, NULL AS reason,
        NULL::timestamptz AS created_at, NULL::timestamptz AS expires_at
    FROM execs WHERE state IN ('starting', 'running') AND workspace_id = ANY(CAST(:ids AS text[]))
    UNION ALL
    SELECT workspace_id, id, NULL, NULL, NULL, actor_id, actor_name, reason, created_at, expires_at
    FROM leases WHERE workspace_id = ANY(CAST(:ids AS text[]))
"""
LEASE_COLUMNS: Final = (
    "id", "workspace_id", "actor_id", "actor_name", "reason", "created_at", "expires_at",
)  # fmt: skip


async def read_holds(conn: AsyncConnection, workspace_ids: Collection[str]) -> dict[str, Holds]:
    """Return the holds of these workspaces. One without holds is left out."""
    if not workspace_ids:
        return {}
    commands: defaultdict[str, list[Command]] = defaultdict(list)
    leases: defaultdict[str, list[Lease]] = defaultdict(list)
    for row in (await conn.execute(text(HOLDS), {"ids": sorted(workspace_ids)})).mappings():
        if row["id"] is None:
            commands[row["workspace_id"]].append(_command(row))
        else:
            leases[row["workspace_id"]].append(to_lease(row))
    return {
        name: Holds(tuple(commands[name]), tuple(leases[name])) for name in commands.keys() | leases.keys()
    }


def _command(row: RowMapping) -> Command:
    seconds = row["timeout_seconds"]
    longest = LONGEST_TIMEOUT.total_seconds()
    timeout = None if seconds is None else timedelta(seconds=min(seconds, longest))
    return Command(row["started_at"], row["seen_at"], timeout)


def to_lease(row: RowMapping) -> Lease:
    values: dict[str, Any] = {name: row[name] for name in LEASE_COLUMNS}
    return Lease(**values)
