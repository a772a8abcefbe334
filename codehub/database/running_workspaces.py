"""What the usage sampler needs to know of workspaces that run."""

from typing import Final

from codehub.database.holds import to_cpu_hold
from codehub.database.row_mapping import Row
from codehub.domain.disk import HomeSize
from codehub.domain.running_workspace import RunningWorkspace

RUNNING: Final = """
    SELECT id, awake_cpu_percent, h.measured_at AS home_measured_at, h.bytes, h.entries, h.complete,
        h.quota_bytes, c.percent, c.above_percent, c.began_at, c.measured_at
    FROM workspaces
    LEFT JOIN home_sizes h ON h.workspace_id = id
    LEFT JOIN cpu_holds c ON c.workspace_id = id
    WHERE phase = 'RUNNING'
"""


def to_running_workspace(row: Row) -> RunningWorkspace:
    home = None
    if row["home_measured_at"] is not None:
        home = HomeSize(row["bytes"], row["entries"], row["complete"], quota_bytes=row["quota_bytes"])
    hold = None if row["began_at"] is None else to_cpu_hold(dict(row))
    return RunningWorkspace(row["id"], row["awake_cpu_percent"], home, hold)
