"""Commands, leases and CPU use that may keep workspaces awake, read in one query for many workspaces."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.domain.awake import LONGEST_TIMEOUT, Command, CpuHold, Holds, Lease

HOLDS: Final = """
    SELECT 'command' AS kind, workspace_id, NULL AS id, coalesce(started_at, created_at) AS began_at,
        seen_at, timeout_seconds, NULL AS actor_id, NULL AS actor_name, NULL AS reason,
        NULL::timestamptz AS expires_at, NULL::float AS percent, NULL::int AS above_percent
    FROM execs WHERE state IN ('starting', 'running') AND workspace_id = ANY(CAST(:ids AS text[]))
    UNION ALL
    SELECT 'lease', workspace_id, id, created_at, NULL, NULL, actor_id, actor_name, reason, expires_at,
        NULL, NULL
    FROM leases WHERE workspace_id = ANY(CAST(:ids AS text[]))
    UNION ALL
    SELECT 'cpu', workspace_id, NULL, began_at, measured_at, NULL, NULL, NULL, NULL, NULL, percent,
        above_percent
    FROM cpu_holds WHERE workspace_id = ANY(CAST(:ids AS text[]))
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
    cpu: dict[str, CpuHold] = {}
    for row in (await conn.execute(text(HOLDS), {"ids": sorted(workspace_ids)})).mappings():
        name = row["workspace_id"]
        match row["kind"]:
            case "command":
                commands[name].append(_command(row))
            case "lease":
                leases[name].append(to_lease({**row, "created_at": row["began_at"]}))
            case _:
                cpu[name] = to_cpu_hold({**row, "measured_at": row["seen_at"]})
    return {
        name: Holds(tuple(commands[name]), tuple(leases[name]), cpu.get(name))
        for name in commands.keys() | leases.keys() | cpu.keys()
    }


def _command(row: RowMapping) -> Command:
    seconds = row["timeout_seconds"]
    longest = LONGEST_TIMEOUT.total_seconds()
    timeout = None if seconds is None else timedelta(seconds=min(seconds, longest))
    return Command(row["began_at"], row["seen_at"], timeout)


def to_lease(row: Mapping[Any, Any]) -> Lease:
    values: dict[str, Any] = {name: row[name] for name in LEASE_COLUMNS}
    return Lease(**values)


def to_cpu_hold(row: Mapping[Any, Any]) -> CpuHold:
    return CpuHold(row["percent"], row["above_percent"], row["began_at"], row["measured_at"])
