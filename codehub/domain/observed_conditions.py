"""Conditions of a workspace, derived from an observation."""

from dataclasses import replace
from datetime import datetime, timedelta

from codehub.domain.allowed_changes import archive_committed
from codehub.domain.conditions import Condition, holds, updated_condition
from codehub.domain.observation import (
    ArchiveFact,
    Generation,
    Observation,
    Skipped,
    Unknown,
    VolumeFact,
)
from codehub.domain.states import ConditionName, Operation
from codehub.domain.workspace import Workspace

SILENCE = timedelta(seconds=30)
"""How long a ready container may stay without an answer before it counts as not ready."""

VANISHED = "Vanished"
"""Reason of a condition that still holds after one observation found nothing. A second decides."""

MISSING = "Missing"
"""Reason of a condition after two observations did not find what should exist."""


def apply_observation(workspace: Workspace, observation: Observation, now: datetime) -> Workspace:
    """Return the workspace with the conditions that this observation shows, and its upstream."""
    conditions = dict(workspace.conditions)
    for name, condition in (
        (ConditionName.VOLUME_READY, _volume_ready(workspace, observation, now)),
        (ConditionName.ARCHIVE_READY, _archive_ready(workspace, observation, now)),
        (ConditionName.CONTAINER_EXISTS, _container_exists(workspace, observation, now)),
        (ConditionName.CONTAINER_READY, _container_ready(workspace, observation, now)),
    ):
        conditions[name] = condition
    conditions[ConditionName.HEALTHY] = _healthy(workspace, conditions, now)
    if conditions == workspace.conditions:
        return _with_upstream(workspace, observation)
    return _with_upstream(replace(workspace, conditions=conditions, observed_at=observation.at), observation)


def expected_generation(workspace: Workspace) -> str | None:
    """Return the op_id that the volume's marker must have now, or None when no home is expected."""
    if workspace.operation in (Operation.PROVISIONING, Operation.RESTORING):
        return workspace.op_id
    return workspace.home_ctx.op_id if workspace.home_ctx is not None else None


def removes_volume(workspace: Workspace) -> bool:
    """Return whether an operation with a committed archive removes the home.

    Only then may it disappear.
    """
    return workspace.operation is Operation.ARCHIVING and archive_committed(workspace)


def is_home_lost(workspace: Workspace) -> bool:
    """Return whether the home existed, two observations did not find it, and CodeHub does not remove it."""
    volume = workspace.conditions[ConditionName.VOLUME_READY]
    expected = workspace.home_ctx is not None and not removes_volume(workspace)
    return expected and not volume.status and volume.reason != "Unobservable"


def volume_generation(observation: Observation) -> Generation | None:
    return observation.volume.generation if isinstance(observation.volume, VolumeFact) else None


def _volume_ready(workspace: Workspace, observation: Observation, now: datetime) -> Condition:
    name, old = ConditionName.VOLUME_READY, workspace.conditions
    if isinstance(observation.volume, Unknown):
        return updated_condition(old, name, old[name].status, "Unobservable", observation.volume.message, now)
    generation = volume_generation(observation)
    if generation is not None and generation.op_id == expected_generation(workspace):
        return updated_condition(old, name, True, "Ready", "", now)
    if workspace.home_ctx is not None and not removes_volume(workspace):
        if old[name].status and (old[name].reason != VANISHED or not _is_fresh(workspace, observation, now)):
            return updated_condition(old, name, True, VANISHED, "The home is missing. Checking again.", now)
        return updated_condition(old, name, False, MISSING, "The home existed and is missing now.", now)
    if generation is not None:
        return updated_condition(
            old, name, False, "ForeignGeneration", f"There is a home of operation {generation.op_id}.", now
        )
    if observation.volume is not None:
        return updated_condition(old, name, False, "Unfinished", "There is a home without its marker.", now)
    return updated_condition(old, name, False, "NoVolume", "", now)


def _archive_ready(workspace: Workspace, observation: Observation, now: datetime) -> Condition:
    name, old = ConditionName.ARCHIVE_READY, workspace.conditions
    if isinstance(observation.archive, Skipped):
        return old[name]
    if isinstance(observation.archive, Unknown):
        return updated_condition(
            old, name, old[name].status, "Unobservable", observation.archive.message, now
        )
    if isinstance(observation.archive, ArchiveFact):
        committed = observation.archive.key == workspace.archive_key
        return updated_condition(old, name, True, "Ready", "", now) if committed else old[name]
    if workspace.operation.makes_archive and not archive_committed(workspace):
        return old[name]
    if workspace.archive_key is None:
        return updated_condition(old, name, False, "NoArchive", "", now)
    if old[name].reason == MISSING:
        return old[name]
    if old[name].reason != VANISHED or not _is_fresh(workspace, observation, now):
        status = old[name].status
        return updated_condition(old, name, status, VANISHED, "The archive is missing. Checking again.", now)
    return updated_condition(
        old, name, False, MISSING, f"The archive {workspace.archive_key} is missing.", now
    )


def _is_fresh(workspace: Workspace, observation: Observation, now: datetime) -> bool:
    """Return whether this observation is newer than the one that showed the last change.

    A last change in the future dates from before the clock was set back.
    """
    last = workspace.observed_at
    return last is None or observation.at > last or last > now


def _container_exists(workspace: Workspace, observation: Observation, now: datetime) -> Condition:
    name, old = ConditionName.CONTAINER_EXISTS, workspace.conditions
    if isinstance(observation.container, Unknown):
        return updated_condition(
            old, name, old[name].status, "Unobservable", observation.container.message, now
        )
    if observation.container is None:
        return updated_condition(old, name, False, "NoContainer", "", now)
    if not observation.container.exists:
        return updated_condition(old, name, False, "NoContainer", observation.container.message, now)
    reason = "Running" if observation.container.running else "Exited"
    return updated_condition(old, name, True, reason, observation.container.message, now)


def _container_ready(workspace: Workspace, observation: Observation, now: datetime) -> Condition:
    name, old = ConditionName.CONTAINER_READY, workspace.conditions
    if isinstance(observation.container, Unknown):
        return updated_condition(
            old, name, old[name].status, "Unobservable", observation.container.message, now
        )
    container = observation.container
    if container is None or not container.exists or not container.running:
        return updated_condition(old, name, False, "NotRunning", "", now)
    if container.ready:
        return updated_condition(old, name, True, "Ready", "", now)
    silent = observation.silent_since is not None and now - observation.silent_since >= SILENCE
    if old[name].status and not silent:
        return updated_condition(
            old, name, True, "NotAnswering", "The IDE does not answer at the moment.", now
        )
    return updated_condition(old, name, False, "NotAnswering", container.message, now)


def _healthy(workspace: Workspace, conditions: dict[ConditionName, Condition], now: datetime) -> Condition:
    """Return False only for a container whose volume is missing (contract 6).

    Under an operation the condition does not turn False: ERROR has no operation, so that ends
    first.
    """
    old = workspace.conditions
    begins = workspace.operation is Operation.NONE or not holds(old, ConditionName.HEALTHY)
    broken = (
        holds(conditions, ConditionName.CONTAINER_EXISTS)
        and not holds(conditions, ConditionName.VOLUME_READY)
        and workspace.home_ctx is not None
    )
    healthy = not (broken and begins)
    return updated_condition(
        old, ConditionName.HEALTHY, healthy, "Healthy" if healthy else "ContainerWithoutVolume", "", now
    )


def _with_upstream(workspace: Workspace, observation: Observation) -> Workspace:
    """Return the workspace with the address of its IDE. It is set exactly while the IDE is ready."""
    ready = holds(workspace.conditions, ConditionName.CONTAINER_READY)
    if isinstance(observation.container, Unknown):
        upstream = workspace.upstream if ready else None
    else:
        upstream = observation.container.upstream if ready and observation.container is not None else None
    return workspace if upstream == workspace.upstream else replace(workspace, upstream=upstream)


def silent_since(previous: datetime | None, is_ready: bool, at: datetime) -> datetime | None:
    """Return when a container stopped answering, as far as this controller knows."""
    return None if is_ready else previous or at
