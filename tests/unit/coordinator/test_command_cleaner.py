"""The cleaner keeps the records of exactly those commands whose rows say so."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from codehub.coordinator.command_cleaner import CommandCleaner
from codehub.database.leadership import StaleLeader
from codehub.runtimes.command_runtime import CommandStatus, ExecState

NOW = datetime(2026, 1, 2, tzinfo=UTC)
ENDED = CommandStatus(ExecState.EXITED, 0.0, 1.0, 0, None, 0, 0, 0)
RUNNING = replace(ENDED, state=ExecState.RUNNING, ended_at=None, exit_code=None)


@dataclass
class Records:
    """The records of commands, and what happened to them."""

    kept: dict[str, dict[str, CommandStatus]]
    killed: list[str] = field(default_factory=list)
    aside: dict[str, dict[str, CommandStatus]] = field(default_factory=dict)

    async def kept_commands(self) -> dict[str, frozenset[str]]:
        return {name: frozenset(records) for name, records in self.kept.items()}

    async def find_command(self, workspace_id: str, exec_id: str) -> CommandStatus | None:
        return self.kept[workspace_id].get(exec_id)

    async def kill_command(self, workspace_id: str, exec_id: str, reason: str) -> None:
        self.killed.append(exec_id)
        self.kept[workspace_id][exec_id] = replace(ENDED, state=ExecState.KILLED, reason=reason)

    async def forget_command(self, workspace_id: str, exec_id: str) -> None:
        del self.kept[workspace_id][exec_id]

    def set_aside(self, workspace_id: str) -> str | None:
        self.aside[f"removed-{workspace_id}"] = self.kept.pop(workspace_id)
        return f"removed-{workspace_id}"

    def put_back(self, workspace_id: str, aside: str) -> None:
        self.kept[workspace_id] = self.aside.pop(aside)

    async def remove_set_aside(self) -> None:
        self.aside.clear()


@dataclass
class Rows:
    """The rows of commands, and the workspaces that have a home."""

    wanted: set[str]
    homes: set[str]
    expired_before: datetime | None = None
    started_since: set[str] = field(default_factory=set)
    """Workspaces that are started after the homes were read."""
    commits: bool = True

    async def remove_expired_execs(self, ended_before: datetime, now: datetime) -> int:
        self.expired_before = ended_before
        return 0

    async def wanted_execs(self, exec_ids: Collection[str], now: datetime) -> set[str]:
        return self.wanted & set(exec_ids)

    async def without_home(self, workspace_ids: Collection[str]) -> set[str]:
        return set(workspace_ids) - self.homes

    @asynccontextmanager
    async def locked_without_home(self, workspace_id: str) -> AsyncIterator[bool]:
        yield workspace_id not in self.homes | self.started_since
        if not self.commits:
            raise StaleLeader


def cleaner(rows: Rows, records: Records) -> CommandCleaner:
    return CommandCleaner(cast(Any, rows), cast(Any, records), timedelta(days=1))


async def test_records_without_a_row_are_removed_and_others_stay() -> None:
    records = Records({"w1": {"kept": ENDED, "forgotten": ENDED}, "w2": {"gone": ENDED}})
    rows = Rows({"kept"}, {"w1"})
    await cleaner(rows, records).tick(NOW)
    assert records.kept == {"w1": {"kept": ENDED}}
    assert rows.expired_before == NOW - timedelta(days=1)


async def test_a_command_that_still_runs_is_killed_before_its_record_is_removed() -> None:
    records = Records({"w1": {"forgotten": RUNNING}})
    tested = cleaner(Rows(set(), {"w1"}), records)
    await tested.tick(NOW)
    assert records.killed == ["forgotten"] and "forgotten" in records.kept["w1"]
    await tested.tick(NOW)
    assert records.kept == {"w1": {}}


async def test_what_is_kept_of_a_workspace_without_a_home_is_removed() -> None:
    records = Records({"w1": {"ended": ENDED}})
    await cleaner(Rows({"ended"}, set()), records).tick(NOW)
    assert (records.kept, records.aside) == ({}, {})


async def test_a_workspace_that_starts_meanwhile_keeps_its_directory() -> None:
    records = Records({"w1": {"kept": RUNNING}})
    await cleaner(Rows({"kept"}, set(), started_since={"w1"}), records).tick(NOW)
    assert records.kept == {"w1": {"kept": RUNNING}}


async def test_a_leader_whose_lock_ended_earlier_puts_the_directory_back() -> None:
    records = Records({"w1": {"kept": RUNNING}})
    with pytest.raises(StaleLeader):
        await cleaner(Rows({"kept"}, set(), commits=False), records).tick(NOW)
    assert (records.kept, records.aside) == ({"w1": {"kept": RUNNING}}, {})
