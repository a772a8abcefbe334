"""Which workspaces rest, so that a pass over very many looks closely at the others only."""

from collections.abc import Mapping
from dataclasses import dataclass

from codehub.domain.observation import ContainerFact, Unknown, VolumeFact
from codehub.domain.observe import VANISHED
from codehub.domain.plan import must_observe_archive
from codehub.domain.states import ConditionName, Operation
from codehub.domain.workspace import Workspace


@dataclass(frozen=True)
class BulkObservation:
    """One look at all containers and all volumes, by workspace id."""

    containers: Mapping[str, ContainerFact | Unknown] | Unknown
    volumes: Mapping[str, VolumeFact | Unknown] | Unknown

    @property
    def is_outage(self) -> bool:
        """Whether the runtime or the volumes cannot be looked at: then all workspaces look the same."""
        return isinstance(self.containers, Unknown) or isinstance(self.volumes, Unknown)

    def container(self, workspace_id: str) -> ContainerFact | Unknown | None:
        return self.containers if isinstance(self.containers, Unknown) else self.containers.get(workspace_id)

    def volume(self, workspace_id: str) -> VolumeFact | Unknown | None:
        return self.volumes if isinstance(self.volumes, Unknown) else self.volumes.get(workspace_id)


class IdleTracker:
    """Tells from one pass to the next which workspaces need a closer look.

    A workspace that was found at rest stays so as long as neither its row nor what is seen of it changes: the
    same decision would be made again, nothing. An outage says nothing about any of them: what is seen after
    it is compared with what was seen before. Dictionaries are compared as a whole, since a pass is over
    everything there is.
    """

    def __init__(self) -> None:
        self._versions: Mapping[str, int] = {}
        self._containers: Mapping[str, ContainerFact | Unknown] = {}
        self._volumes: Mapping[str, VolumeFact | Unknown] = {}
        self._restless: set[str] = set()

    def others(self, versions: Mapping[str, int], seen: BulkObservation) -> list[str]:
        """The workspaces that may not rest any more, or were never found to."""
        restless = self._restless | _changed(self._versions, versions)
        if not isinstance(seen.containers, Unknown):
            restless |= _changed(self._containers, seen.containers)
            self._containers = seen.containers
        if not isinstance(seen.volumes, Unknown):
            restless |= _changed(self._volumes, seen.volumes)
            self._volumes = seen.volumes
        self._versions = versions
        self._restless = restless & versions.keys()
        return sorted(self._restless)

    def add(self, workspace: Workspace) -> None:
        """It was found at rest in this pass; unless its row has changed meanwhile."""
        if self._versions.get(workspace.id) == workspace.version and not waits_for_time(workspace):
            self._restless.discard(workspace.id)

    def disturb(self, workspace_id: str) -> None:
        self._restless.add(workspace_id)


def _changed(old: Mapping[str, object], new: Mapping[str, object]) -> set[str]:
    """What has come, gone or become another since."""
    if old == new:
        return set()
    before = old.get
    return {name for name, fact in new.items() if before(name) != fact} | (old.keys() - new.keys())


def is_unfinished(workspace: Workspace) -> bool:
    """Whether it needs a closer look, whatever the bulk look shows."""
    under_way = workspace.operation is not Operation.NONE or workspace.request is not None
    vanished = any(condition.reason == VANISHED for condition in workspace.conditions.values())
    return under_way or vanished or must_observe_archive(workspace)


def waits_for_time(workspace: Workspace) -> bool:
    """Whether time alone may change the decision: a retry, forgiveness, a silence that gets too long."""
    retries = workspace.next_retry_at is not None
    unproven = workspace.error_count > 0 and workspace.started_at is not None
    silent = workspace.conditions[ConditionName.CONTAINER_READY].reason == "NotAnswering"
    return retries or unproven or silent
