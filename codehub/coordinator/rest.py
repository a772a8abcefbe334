"""Which workspaces rest, so that a pass over very many looks closely at the others only."""

from collections.abc import Mapping
from dataclasses import dataclass

from codehub.domain.observation import ContainerFact, Unknown, VolumeFact
from codehub.domain.observe import VANISHED
from codehub.domain.plan import looks_at_archive
from codehub.domain.states import ConditionName, Operation
from codehub.domain.workspace import Workspace


@dataclass(frozen=True)
class Panorama:
    """One look at all containers and all volumes, by workspace id."""

    containers: Mapping[str, ContainerFact] | Unknown
    volumes: Mapping[str, VolumeFact] | Unknown

    def container(self, workspace_id: str) -> ContainerFact | Unknown | None:
        return self.containers if isinstance(self.containers, Unknown) else self.containers.get(workspace_id)

    def volume(self, workspace_id: str) -> VolumeFact | Unknown | None:
        return self.volumes if isinstance(self.volumes, Unknown) else self.volumes.get(workspace_id)


class Resting:
    """Workspaces found at rest, each with the row and the look that showed it.

    As long as neither changes, the same decision would be made again: nothing.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, ContainerFact | Unknown | None, VolumeFact | Unknown | None]] = {}

    def others(self, versions: Mapping[str, int], seen: Panorama) -> list[str]:
        """The workspaces that may not rest any more, or were never found to."""
        if len(self._found) > len(versions):
            self._found = {name: found for name, found in self._found.items() if name in versions}
        found = self._found.get
        return [
            name
            for name, version in versions.items()
            if found(name) != (version, seen.container(name), seen.volume(name))
        ]

    def add(self, workspace: Workspace, seen: Panorama) -> None:
        if not waits_for_time(workspace):
            self._found[workspace.id] = (
                workspace.version,
                seen.container(workspace.id),
                seen.volume(workspace.id),
            )

    def disturb(self, workspace_id: str) -> None:
        self._found.pop(workspace_id, None)


def is_unfinished(workspace: Workspace) -> bool:
    """Whether it needs a closer look, whatever the bulk look shows."""
    under_way = workspace.operation is not Operation.NONE or workspace.request is not None
    vanished = any(condition.reason == VANISHED for condition in workspace.conditions.values())
    return under_way or vanished or looks_at_archive(workspace)


def waits_for_time(workspace: Workspace) -> bool:
    """Whether time alone may change the decision: a retry, forgiveness, a silence that gets too long."""
    retries = workspace.next_retry_at is not None
    unproven = workspace.error_count > 0 and workspace.started_at is not None
    silent = workspace.conditions[ConditionName.CONTAINER_READY].reason == "NotAnswering"
    return retries or unproven or silent
