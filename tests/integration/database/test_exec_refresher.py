"""Refresh of a command's row, from a record on disk."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.access.exec_refresher import refresh_row
from codehub.database import exec_queries
from codehub.database.tables import execs
from codehub.domain.execs import Exec, ExecState
from codehub.host.processes import ProcessId, boot_id
from codehub.runtimes import exec_directory
from codehub.runtimes.exec_directory import ExecRecord
from codehub.runtimes.recorded_commands import RecordedCommands
from tests.integration.database.test_exec_gate import insert, running_workspace

LONG_AGO = datetime.now(UTC) - timedelta(hours=3)


async def test_a_quiet_terminal_survives_a_missed_look(engine: AsyncEngine, tmp_path: Path) -> None:
    workspace_id = await running_workspace(engine)
    row, _ = await insert(engine, workspace_id, tty=True, now=LONG_AGO)
    async with engine.begin() as conn:
        await conn.execute(update(execs).values(state="running", started_at=LONG_AGO))
    commands = RecordedCommands(tmp_path)
    directory = commands.directory(workspace_id, row.id)
    directory.path.mkdir(parents=True)

    async def refresh() -> Exec:
        async with engine.connect() as conn:
            before = await exec_queries.find(conn, workspace_id, row.id)
        assert before is not None
        await refresh_row(engine, cast(Any, commands), before)
        async with engine.connect() as conn:
            after = await exec_queries.find(conn, workspace_id, row.id)
        assert after is not None
        return after

    missed = await refresh()
    assert missed.state is ExecState.RUNNING and missed.missing_since is not None
    monitor = ProcessId.of(os.getpid())
    assert monitor is not None
    directory.write_record(
        ExecRecord(exec_directory.ExecState.RUNNING, boot_id(), monitor, LONG_AGO.timestamp())
    )
    found = await refresh()
    assert (found.state, found.missing_since, found.seen_at) == (ExecState.RUNNING, None, LONG_AGO)
