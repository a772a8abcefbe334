"""Bugs to plant in a coordinator or a job, each with the crash that must reveal it."""

import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codehub.database.leader_database import PostgresLeaderDatabase
from codehub.domain.archive_keys import parse_archive_key
from codehub.domain.decision import Decision, TimelineEvent
from codehub.domain.observation import Generation
from codehub.domain.states import Operation
from codehub.domain.workspace import Workspace
from codehub.storage.archive.archives import BlockingArchiveStore
from codehub.storage.jobs import work
from codehub.storage.jobs.spec import RestoreJob
from codehub.storage.volumes.workspace_directory import WorkspaceDirectory, make_private_directory
from tests.chaos.crash_matrix.steps import AFTER, BEFORE, COORDINATOR, JOB, CrashPoint


@dataclass(frozen=True)
class PlantedBug:
    """Bug, and the cell of the matrix that fails because of it."""

    scenario: str
    target: str
    point: CrashPoint
    install: Callable[[Path], None]
    """Patches the calling process; takes the data directory."""
    expected_text: str
    """Part of the failed cell's summary."""


def _home_before_claim(data_dir: Path) -> None:
    """Provision the home before the operation's claim is committed."""

    async def provision(row: Workspace, decision: Decision) -> None:
        if decision.event is TimelineEvent.CLAIMED and decision.after.operation is Operation.PROVISIONING:
            directory = WorkspaceDirectory.of_key(data_dir / "volumes", row.home_store_key)
            if directory.observe() is not None:
                return
            directory.ensure()
            staging = directory.staging(decision.after.op_id or "")
            make_private_directory(staging, None)
            directory.swap_in(staging, Generation(decision.after.op_id or "", None))

    _before_each_commit(provision)


def _deleted_before_committed(data_dir: Path) -> None:
    """Delete the home once its archive is observed, before archive_key is committed."""

    async def delete(row: Workspace, decision: Decision) -> None:
        if decision.event is TimelineEvent.ARCHIVED:
            shutil.rmtree(data_dir / "volumes" / row.home_store_key)

    _before_each_commit(delete)


def _restored_in_place(_: Path) -> None:
    """Swap the home in, with its marker, before it is complete and its checksum verified."""

    def restore(spec: RestoreJob, directory: WorkspaceDirectory, context: work.JobContext) -> work.JobOutcome:
        if directory.observe() is not None:
            return work.JobOutcome("the home was already restored")
        archives = BlockingArchiveStore(spec.location.archive_url, spec.location.installation_id)
        fact = archives.find(*parse_archive_key(spec.archive_key))
        assert fact is not None
        staging = directory.staging(spec.op_id)
        staging.mkdir(mode=0o700)
        directory.swap_in(staging, Generation(spec.op_id, spec.archive_key))
        work.unpack(archives.read(fact), fact, directory.home, context.locks, context.reporter.progress)
        return work.JobOutcome("restored")

    work._restore = restore


def _staging_kept(_: Path) -> None:
    """Have a restore keep the staging directory of an earlier one."""
    real = WorkspaceDirectory.leftovers

    def leftovers(self: WorkspaceDirectory, kind: str) -> list[Path]:
        return [] if kind == "staging" else real(self, kind)

    WorkspaceDirectory.leftovers = leftovers  # type: ignore[method-assign]


def _before_each_commit(first: Callable[[Workspace, Decision], Awaitable[None]]) -> None:
    real = PostgresLeaderDatabase.save

    async def save(
        self: PostgresLeaderDatabase, before: Workspace, decision: Decision, now: Any
    ) -> Workspace:
        await first(before, decision)
        return await real(self, before, decision, now)

    PostgresLeaderDatabase.save = save  # type: ignore[method-assign]


PLANTED_BUGS = {
    "home created before the claim": PlantedBug(
        "PROVISIONING",
        "coordinator",
        CrashPoint(COORDINATOR, "commit claimed PROVISIONING", BEFORE),
        _home_before_claim,
        expected_text="ERROR",
    ),
    "home deleted before its archive is committed": PlantedBug(
        "ARCHIVING",
        "coordinator",
        CrashPoint(COORDINATOR, "commit archived ARCHIVING", BEFORE),
        _deleted_before_committed,
        expected_text="DataLost",
    ),
    "home swapped in before its checksum is verified": PlantedBug(
        "RESTORING",
        "both",
        CrashPoint(JOB, "restore: spawn tar ws/home", AFTER),
        _restored_in_place,
        expected_text="the tree is not the older one",
    ),
    "leftovers of a killed restore not cleared": PlantedBug(
        "RESTORING",
        "both",
        CrashPoint(JOB, "restore: mkdir ws/.staging-*", AFTER),
        _staging_kept,
        expected_text="RetryExceeded",
    ),
}
