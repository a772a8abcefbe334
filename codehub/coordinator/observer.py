"""Observer: collects the facts of one workspace, or those of all in a constant number of calls."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from codehub.coordinator.idle_tracker import BulkObservation
from codehub.coordinator.provider_interfaces import Providers
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
from codehub.domain.restore_request import must_observe_chosen
from codehub.domain.workspace import Workspace
from codehub.runtimes.base import RuntimeUnobservable
from codehub.storage.errors import CorruptedArchive, StorageProblem


@dataclass
class LeaderState:
    """In-memory state of a leader. Convergence does not depend on it."""

    observed: set[str] = field(default_factory=set)
    silent_since: dict[str, datetime] = field(default_factory=dict)
    started_jobs: set[str] = field(default_factory=set)
    fenced: set[str] = field(default_factory=set)
    """Workspaces whose homes are fenced against every earlier leader."""
    to_audit: set[str] = field(default_factory=set)
    """Workspaces whose archive the hourly comparison found gone or back. Each is observed once."""
    newest_epoch: int = 0
    """The newest epoch that a disk reported when it rejected this leader."""

    def update_silence(
        self, workspace_id: str, container: ContainerFact | None, at: datetime
    ) -> datetime | None:
        answering = container is None or not container.running or container.ready
        since = silent_since(self.silent_since.get(workspace_id), answering, at)
        if since is None:
            self.silent_since.pop(workspace_id, None)
        else:
            self.silent_since[workspace_id] = since
        return since


class Observer:
    def __init__(self, providers: Providers, state: LeaderState) -> None:
        self._providers = providers
        self._state = state

    async def observe(self, workspace: Workspace, at: datetime) -> Observation:
        """Observe everything of one workspace that matters now.

        Jobs come first: a job that ends meanwhile then appears as running beside its result, and
        never as done without its result.
        """
        job, deletion, ours = await self._jobs(workspace)
        filtered = self._providers.messages.redact_fact
        return self._with_state(
            workspace,
            Observation(
                at=at,
                container=filtered(await self._container(workspace.id)),
                volume=filtered(await self._volume(workspace.home_store_key)),
                archive=filtered(await self._archive(workspace)),
                chosen=filtered(await self._chosen(workspace)),
                job=filtered(job),
                deletion=filtered(deletion),
                job_is_ours=ours,
            ),
        )

    async def observe_all(self) -> BulkObservation:
        """Observe all containers and volumes, in one call each."""
        return BulkObservation(await self._all_containers(), await self._all_volumes())

    def observation_of(self, workspace: Workspace, bulk: BulkObservation, at: datetime) -> Observation:
        """Return the part of a bulk observation that concerns one workspace."""
        filtered = self._providers.messages.redact_fact
        container, volume = filtered(bulk.container(workspace.id)), filtered(bulk.volume(workspace.id))
        return self._with_state(workspace, Observation(at=at, container=container, volume=volume))

    def _with_state(self, workspace: Workspace, observation: Observation) -> Observation:
        container = None if isinstance(observation.container, Unknown) else observation.container
        return replace(
            observation,
            silent_since=self._state.update_silence(workspace.id, container, observation.at),
            is_first=workspace.id not in self._state.observed,
        )

    async def _jobs(self, workspace: Workspace) -> tuple[JobFact | None, JobFact | None, bool]:
        """Return the jobs of the current attempt, and whether this leader started the latest one."""
        if not workspace.operation.has_jobs:
            return None, None, True
        name, deletion_name = current_job_id(workspace), current_deletion_job_id(workspace)
        job = await self._providers.jobs.status(name)
        deletion = await self._providers.jobs.status(deletion_name)
        latest = name if deletion is None else deletion_name
        return job, deletion, latest in self._state.started_jobs

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
        """Observe the archive of the current operation, or else the one that the row names."""
        audit = workspace.id in self._state.to_audit
        self._state.to_audit.discard(workspace.id)
        if not audit and not must_observe_archive(workspace):
            return SKIPPED
        if workspace.operation.makes_archive and workspace.archive_op_id is not None:
            archive_op_id = workspace.archive_op_id
        elif workspace.archive_key is not None:
            archive_op_id = archive_op_id_of(workspace.archive_key)
        else:
            return SKIPPED
        return await self._find_archive(workspace.id, archive_op_id)

    async def _chosen(self, workspace: Workspace) -> ArchiveFact | Unknown | Skipped | None:
        """Observe the archive that a request to restore names, when the decision depends on it."""
        if workspace.archive_to_restore is None or not must_observe_chosen(workspace):
            return SKIPPED
        try:
            return await self._providers.archives.find(workspace.id, workspace.archive_to_restore)
        except CorruptedArchive:
            return None  # as good as gone: it cannot be restored, and waiting would not change that
        except StorageProblem as error:
            return Unknown(str(error))

    async def _find_archive(self, workspace_id: str, archive_op_id: str) -> ArchiveFact | Unknown | None:
        try:
            return await self._providers.archives.find(workspace_id, archive_op_id)
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
