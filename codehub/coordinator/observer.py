"""Looks at the world: one workspace closely, or all of them in a constant number of calls."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from codehub.coordinator.idle_tracker import BulkObservation
from codehub.coordinator.providers import Providers
from codehub.domain.archive_keys import archive_op_id_of
from codehub.domain.attempt_jobs import current_deletion_job_id, current_job_id
from codehub.domain.observation import (
    SKIPPED,
    ArchiveFact,
    ContainerFact,
    JobFact,
    Observation,
    Skipped,
    Unknown,
    VolumeFact,
)
from codehub.domain.observed_conditions import silent_since
from codehub.domain.plan import must_observe_archive
from codehub.domain.workspace import Workspace
from codehub.runtimes.base import Unobservable as RuntimeUnobservable
from codehub.storage.errors import CorruptedArchive, StorageProblem


@dataclass
class LeaderState:
    """What this controller remembers of its own: nothing that convergence depends on."""

    seen: set[str] = field(default_factory=set)
    silent: dict[str, datetime] = field(default_factory=dict)
    started_jobs: set[str] = field(default_factory=set)
    fenced: set[str] = field(default_factory=set)
    """Workspaces from whose homes every earlier leader is kept away."""
    to_audit: set[str] = field(default_factory=set)
    """Workspaces whose archive the hourly audit found gone, or back: each is looked at once."""
    newest_epoch: int = 0
    """The latest epoch that a disk has refused this leader for."""

    def silence(self, workspace_id: str, container: ContainerFact | None, at: datetime) -> datetime | None:
        answering = container is None or not container.running or container.ready
        since = silent_since(self.silent.get(workspace_id), answering, at)
        if since is None:
            self.silent.pop(workspace_id, None)
        else:
            self.silent[workspace_id] = since
        return since


class Observer:
    def __init__(self, providers: Providers, memory: LeaderState) -> None:
        self._providers = providers
        self._memory = memory

    async def look(self, workspace: Workspace, at: datetime) -> Observation:
        """Look at everything of one workspace that matters now.

        Jobs come first: one that ends meanwhile is then seen running beside its result, never done without.
        """
        job, deletion, ours = await self._jobs(workspace)
        shown = self._providers.messages.in_fact
        return self._with_memory(
            workspace,
            Observation(
                at=at,
                container=shown(await self._container(workspace.id)),
                volume=shown(await self._volume(workspace.home_store_key)),
                archive=shown(await self._archive(workspace)),
                job=shown(job),
                deletion=shown(deletion),
                job_is_ours=ours,
            ),
        )

    async def look_at_all(self) -> BulkObservation:
        """Look at all containers and volumes, in one call each."""
        return BulkObservation(await self._all_containers(), await self._all_volumes())

    def single_out(self, workspace: Workspace, seen: BulkObservation, at: datetime) -> Observation:
        """What a look at all shows of one workspace."""
        shown = self._providers.messages.in_fact
        container, volume = shown(seen.container(workspace.id)), shown(seen.volume(workspace.id))
        return self._with_memory(workspace, Observation(at=at, container=container, volume=volume))

    def _with_memory(self, workspace: Workspace, look: Observation) -> Observation:
        container = None if isinstance(look.container, Unknown) else look.container
        return replace(
            look,
            silent_since=self._memory.silence(workspace.id, container, look.at),
            is_first=workspace.id not in self._memory.seen,
        )

    async def _jobs(self, workspace: Workspace) -> tuple[JobFact | None, JobFact | None, bool]:
        """The jobs of the present attempt, and whether this controller started the latest."""
        if not workspace.operation.has_jobs:
            return None, None, True
        name, deletion_name = current_job_id(workspace), current_deletion_job_id(workspace)
        job = await self._providers.jobs.status(name)
        deletion = await self._providers.jobs.status(deletion_name)
        latest = name if deletion is None else deletion_name
        return job, deletion, latest in self._memory.started_jobs

    async def _container(self, workspace_id: str) -> ContainerFact | Unknown | None:
        try:
            return await self._providers.runtime.status(workspace_id)
        except RuntimeUnobservable as error:
            return Unknown(error.message)

    async def _volume(self, key: str) -> VolumeFact | Unknown | None:
        try:
            return await self._providers.volumes.status(key)
        except StorageProblem as error:
            return Unknown(str(error))

    async def _archive(self, workspace: Workspace) -> ArchiveFact | Unknown | Skipped | None:
        """The archive of the operation under way, else the one that the row names."""
        audit = workspace.id in self._memory.to_audit
        self._memory.to_audit.discard(workspace.id)
        if not audit and not must_observe_archive(workspace):
            return SKIPPED
        if workspace.operation.makes_archive and workspace.archive_op_id is not None:
            archive_op_id = workspace.archive_op_id
        elif workspace.archive_key is not None:
            archive_op_id = archive_op_id_of(workspace.archive_key)
        else:
            return SKIPPED
        try:
            return await self._providers.archives.find(workspace.id, archive_op_id)
        except CorruptedArchive as error:
            return Unknown(f"its .meta is unreadable: {error}")
        except StorageProblem as error:
            return Unknown(str(error))

    async def _all_containers(self) -> Mapping[str, ContainerFact | Unknown] | Unknown:
        try:
            return await self._providers.runtime.observe()
        except RuntimeUnobservable as error:
            return Unknown(error.message)

    async def _all_volumes(self) -> Mapping[str, VolumeFact | Unknown] | Unknown:
        try:
            return await self._providers.volumes.observe()
        except StorageProblem as error:
            return Unknown(str(error))
