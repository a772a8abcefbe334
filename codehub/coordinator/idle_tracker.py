"""Bulk observations, and the tracker of idle workspaces, which a sweep can skip."""

from collections.abc import Mapping
from dataclasses import dataclass

from codehub.domain.observation import ContainerFact, Unknown, VolumeFact
from codehub.domain.observed_conditions import VANISHED
from codehub.domain.plan import must_observe_archive
from codehub.domain.states import ConditionName, Operation
from codehub.domain.workspace import Workspace


@dataclass(frozen=True)
class BulkObservation:
    """Snapshot of all containers and all volumes, by workspace id."""

    containers: Mapping[str, ContainerFact | Unknown] | Unknown
    volumes: Mapping[str, VolumeFact | Unknown] | Unknown

    @property
    def is_outage(self) -> bool:
        """Return whether the runtime or the volumes cannot be observed at all."""
        return isinstance(self.containers, Unknown) or isinstance(self.volumes, Unknown)

    def container(self, workspace_id: str) -> ContainerFact | Unknown | None:
        return self.containers if isinstance(self.containers, Unknown) else self.containers.get(workspace_id)

    def volume(self, workspace_id: str) -> VolumeFact | Unknown | None:
        return self.volumes if isinstance(self.volumes, Unknown) else self.volumes.get(workspace_id)


class IdleTracker:
    """Set of the workspaces that need attention, kept from one sweep to the next.

    A workspace that was found idle stays idle until its row or its observation changes: until then,
    the same decision would be made again. An outage changes nothing: the observation after it is
    compared with the one before it. Each sweep covers everything, so whole dictionaries are compared.
    """

    def __init__(self) -> None:
        self._versions: Mapping[str, int] = {}
        self._containers: Mapping[str, ContainerFact | Unknown] = {}
        self._volumes: Mapping[str, VolumeFact | Unknown] = {}
        self._active: set[str] = set()

    def update(self, versions: Mapping[str, int], bulk: BulkObservation) -> list[str]:
        """Take in a sweep's observation; return the ids of the workspaces that are not idle."""
        active = self._active | _changed(self._versions, versions)
        if not isinstance(bulk.containers, Unknown):
            active |= _changed(self._containers, bulk.containers)
            self._containers = bulk.containers
        if not isinstance(bulk.volumes, Unknown):
            active |= _changed(self._volumes, bulk.volumes)
            self._volumes = bulk.volumes
        self._versions = versions
        self._active = active & versions.keys()
        return sorted(self._active)

    def mark_idle(self, workspace: Workspace) -> None:
        """Record that this sweep found the workspace idle, unless its row has changed since."""
        if self._versions.get(workspace.id) == workspace.version and not may_change_with_time(workspace):
            self._active.discard(workspace.id)

    def mark_active(self, workspace_id: str) -> None:
        self._active.add(workspace_id)


def _changed(old: Mapping[str, object], new: Mapping[str, object]) -> set[str]:
    """Return the keys that were added, removed or got another value."""
    if old == new:
        return set()
    before = old.get
    return {name for name, fact in new.items() if before(name) != fact} | (old.keys() - new.keys())


def needs_full_observation(workspace: Workspace) -> bool:
    """Return whether the workspace needs a separate observation, whatever the bulk one shows."""
    under_way = workspace.operation is not Operation.NONE or workspace.request is not None
    vanished = any(condition.reason == VANISHED for condition in workspace.conditions.values())
    return under_way or vanished or must_observe_archive(workspace)


def may_change_with_time(workspace: Workspace) -> bool:
    """Return whether time alone may change the decision.

    Three things expire: the wait for a retry, the error count of a workspace that runs again, and
    the time that an IDE may stay silent.
    """
    retries = workspace.next_retry_at is not None
    unproven = workspace.error_count > 0 and workspace.started_at is not None
    silent = workspace.conditions[ConditionName.CONTAINER_READY].reason == "NotAnswering"
    return retries or unproven or silent
