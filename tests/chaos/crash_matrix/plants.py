"""Bugs to plant in a coordinator or a job, each with the death that must show it."""

import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codehub.database.controller_writes import PostgresLeaderDatabase
from codehub.domain.archive_keys import parse_archive_key
from codehub.domain.decision import Decision, TimelineEvent
from codehub.domain.observation import Generation
from codehub.domain.states import Operation
from codehub.domain.workspace import Workspace
from codehub.storage.archive.archives import Archives
from codehub.storage.jobs import work
from codehub.storage.jobs.spec import RestoreJob
from codehub.storage.volumes.workspace_directory import WorkspaceDirectory, make_private_directory
from tests.chaos.crash_matrix.steps import AFTER, BEFORE, COORDINATOR, JOB, Moment


@dataclass(frozen=True)
class Plant:
    scenario: str
    who: str
    moment: Moment
    sow: Callable[[Path], None]
    """Called with the data directory, in the process that is to have the bug."""
    seen: str
    """What is said of it."""


def _home_before_claim(data_dir: Path) -> None:
    """The effect of an operation comes before its claim is committed."""

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
    """The home goes when its archive is seen, and archive_key is committed afterwards."""

    async def delete(row: Workspace, decision: Decision) -> None:
        if decision.event is TimelineEvent.ARCHIVED:
            shutil.rmtree(data_dir / "volumes" / row.home_store_key)

    _before_each_commit(delete)


def _restored_in_place(_: Path) -> None:
    """The home is swapped in, with its marker, before it is whole and its checksum has held."""

    def restore(spec: RestoreJob, directory: WorkspaceDirectory, context: work.JobContext) -> work.JobOutcome:
        if directory.observe() is not None:
            return work.JobOutcome("the home was already restored")
        archives = Archives(spec.location.archive_url, spec.location.installation_id)
        fact = archives.find(*parse_archive_key(spec.archive_key))
        assert fact is not None
        staging = directory.staging(spec.op_id)
        staging.mkdir(mode=0o700)
        directory.swap_in(staging, Generation(spec.op_id, spec.archive_key))
        work.unpack(archives.read(fact), fact, directory.home, context.locks, context.reporter.progress)
        return work.JobOutcome("restored")

    work._restore = restore


def _stages_left(_: Path) -> None:
    """A restore does not clear what an earlier one has left."""
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


PLANTS = {
    "the effect before the claim": Plant(
        "PROVISIONING",
        "coordinator",
        Moment(COORDINATOR, "commit claimed PROVISIONING", BEFORE),
        _home_before_claim,
        seen="ERROR",
    ),
    "the home deleted before its archive is committed": Plant(
        "ARCHIVING",
        "coordinator",
        Moment(COORDINATOR, "commit archived ARCHIVING", BEFORE),
        _deleted_before_committed,
        seen="DataLost",
    ),
    "the home swapped in before its checksum has held": Plant(
        "RESTORING",
        "both",
        Moment(JOB, "restore: spawn tar ws/home", AFTER),
        _restored_in_place,
        seen="the tree is not the older one",
    ),
    "leftovers of a killed restore not cleared": Plant(
        "RESTORING",
        "both",
        Moment(JOB, "restore: mkdir ws/.staging-*", AFTER),
        _stages_left,
        seen="RetryExceeded",
    ),
}
