"""The decision for a workspace, from its row and a fresh observation.

A pure function (ADR 0001).
"""

from dataclasses import replace

from codehub.domain.archive_keys import archive_key
from codehub.domain.conditions import holds
from codehub.domain.continue_operation import continue_operation
from codehub.domain.data_loss import archive_loss, home_loss
from codehub.domain.decision import (
    Context,
    Decision,
    TimelineEvent,
    record_failure,
    with_phase,
    without_errors,
    without_operation,
    without_waiting_message,
)
from codehub.domain.effects import DeleteContainer, SetHomeAside
from codehub.domain.error_policy import STABLE_AFTER, Failure, is_terminal, waits_for_retry
from codehub.domain.judge import level_of
from codehub.domain.observation import ContainerFact, Observation, Unknown, VolumeFact
from codehub.domain.observed_conditions import VANISHED, apply_observation, volume_generation
from codehub.domain.other_backends import explain_left_alone, why_left_alone
from codehub.domain.restore_request import NOT_ARCHIVED, drop, replace_archive, wait_or_drop
from codehub.domain.states import ConditionName, DesiredState, ErrorReason, Level, Operation
from codehub.domain.timeline_text import BEGUN
from codehub.domain.workspace import PendingRequest, RecoverSource, RequestKind, Workspace


def plan(workspace: Workspace, observation: Observation, context: Context) -> Decision:
    """Decide what to do about this workspace now, with a sentence that says why."""
    other_backend = why_left_alone(workspace, context.rules.backends)
    if other_backend is not None:
        unchanged = explain_left_alone(workspace, other_backend, context.now)
        return with_phase(Decision(other_backend, unchanged), context.now)
    seen = apply_observation(workspace, observation, context.now)
    if seen.operation is not Operation.NONE:
        decision = continue_operation(seen, observation, context)
    elif seen.purged_at is not None:
        decision = Decision("Purged.", seen)
    else:
        decision = _plan_idle(seen, observation, context)
    return with_phase(decision, context.now)


def next_operation(workspace: Workspace) -> Operation:
    """Return the next operation from the level towards the desired state."""
    level, desired = level_of(workspace.conditions), workspace.desired_state
    container = holds(workspace.conditions, ConditionName.CONTAINER_EXISTS)
    if desired is DesiredState.PENDING:
        return Operation.NONE
    if level is Level.RUNNING:
        return Operation.NONE if desired is DesiredState.RUNNING else Operation.STOPPING
    if level is Level.STANDBY:
        return _next_from_standby(workspace, desired, container)
    if desired is DesiredState.DELETED:
        return Operation.DELETING if container else Operation.NONE
    if container:
        return Operation.STOPPING
    return _next_without_home(workspace, level, desired)


def _next_from_standby(workspace: Workspace, desired: DesiredState, container: bool) -> Operation:
    """Return the next operation from STANDBY.

    A home whose archive was waived stays until the workspace is purged (ADR 0025).
    """
    if desired is DesiredState.RUNNING:
        return Operation.STARTING
    if container:
        return Operation.STOPPING
    keeps_home = desired is DesiredState.STANDBY or workspace.grace_waived_at is not None
    return Operation.NONE if keeps_home else Operation.ARCHIVING


def _next_without_home(workspace: Workspace, level: Level, desired: DesiredState) -> Operation:
    if level is Level.ARCHIVED:
        return Operation.NONE if desired is DesiredState.ARCHIVED else Operation.RESTORING
    if workspace.archive_key is not None:
        return Operation.NONE
    return Operation.CREATE_EMPTY_ARCHIVE if desired is DesiredState.ARCHIVED else Operation.PROVISIONING


def must_observe_archive(workspace: Workspace) -> bool:
    """Return whether an observation must include the archive. Otherwise the hourly comparison checks it."""
    if workspace.operation.makes_archive or workspace.operation is Operation.RESTORING:
        return True
    conditions = workspace.conditions
    if conditions[ConditionName.ARCHIVE_READY].reason in (VANISHED, "Unobservable", "NotObserved"):
        return workspace.archive_key is not None
    return workspace.archive_key is not None and level_of(conditions) is Level.PENDING


def _plan_idle(workspace: Workspace, observation: Observation, context: Context) -> Decision:
    if workspace.request is not None and workspace.archive_to_restore is None:
        return _carry_out_request(workspace, workspace.request, observation)
    if is_terminal(workspace.error_reason):
        if workspace.archive_to_restore is not None:
            return drop(workspace, NOT_ARCHIVED)
        return _plan_in_error(workspace, observation, context)
    lost = home_loss(workspace) or archive_loss(workspace)
    if lost is not None:
        return replace(record_failure(workspace, lost, context), event=TimelineEvent.LOST)
    if _must_check_again(workspace, observation):
        return Decision("Something could not be checked, or is missing. Checking again.", workspace)
    if workspace.archive_to_restore is not None:
        return _restore_chosen(workspace, observation, context)
    died = _restart_ended_ide(workspace, observation, context)
    if died is not None:
        return died
    if _is_stable(workspace, context):
        return Decision("Ready for ten minutes. Earlier failures no longer count.", without_errors(workspace))
    return _claim(workspace, next_operation(workspace), context)


def _carry_out_request(workspace: Workspace, request: PendingRequest, observation: Observation) -> Decision:
    """Carry out a request to recover, or a request to cancel whose operation has ended."""
    if request.kind is RequestKind.CANCEL:
        return _clear_late_cancel(workspace)
    volume = workspace.conditions[ConditionName.VOLUME_READY]
    if request.source is not None and volume.reason == "Unobservable":
        return Decision("The recovery waits until the volume can be checked. It may exist.", workspace)
    missing = not holds(workspace.conditions, ConditionName.VOLUME_READY)
    replaced = request.source is not None and missing
    foreign = volume_generation(observation)
    if replaced and foreign is not None:
        sentence = f"Moving the home of operation {foreign.op_id} aside before the recovery. It is kept."
        return Decision(sentence, workspace, effect=SetHomeAside(foreign))
    after = without_errors(workspace)
    sentence = "Recovery: checking the workspace again."
    if replaced and request.source is RecoverSource.ARCHIVE and request.archive_op_id is not None:
        after = _forget_home(after, archive_key(workspace.id, request.archive_op_id))
        sentence = f"Recovery: restoring the archive {after.archive_key}."
    elif replaced and request.source is RecoverSource.EMPTY:
        after = _forget_home(after, None)
        sentence = "Recovery: starting with an empty home."
    return Decision(sentence, after, TimelineEvent.RECOVERED, keep_archives=replaced, consume=True)


def _restore_chosen(workspace: Workspace, observation: Observation, context: Context) -> Decision:
    """Archive the present home, then let RESTORING begin from the chosen archive (ADR 0038)."""
    hindrance = wait_or_drop(workspace, observation)
    if hindrance is not None:
        return hindrance
    as_archived = replace(workspace, desired_state=DesiredState.ARCHIVED)
    operation = next_operation(as_archived)
    if operation in (Operation.STOPPING, Operation.ARCHIVING):
        return _claim(workspace, operation, context)
    if level_of(workspace.conditions) is Level.ARCHIVED:
        return replace_archive(workspace)
    return Decision("The restore waits until the workspace's archive was observed.", workspace)


def _clear_late_cancel(workspace: Workspace) -> Decision:
    """Keep the workspace at its level, because its operation ended before the cancel."""
    sentence = "There is no operation to cancel."
    if workspace.deleted_at is not None or is_terminal(workspace.error_reason):
        return Decision(sentence, workspace, consume=True)
    level = DesiredState(level_of(workspace.conditions).value)
    return Decision(f"{sentence} The workspace stays at {level}.", workspace, desired=level, consume=True)


def _forget_home(workspace: Workspace, key: str | None) -> Workspace:
    """Replace the lost home of the workspace by the archive that its owner chose."""
    conditions = dict(workspace.conditions)
    for name in (ConditionName.ARCHIVE_READY, ConditionName.HEALTHY):
        status = name is ConditionName.HEALTHY
        conditions[name] = replace(conditions[name], status=status, reason="NotObserved", message="")
    return replace(workspace, home_ctx=None, archive_key=key, conditions=conditions, started_at=None)


def _plan_in_error(workspace: Workspace, observation: Observation, context: Context) -> Decision:
    """Keep the workspace in ERROR until it is recovered. Only its container is removed."""
    container = observation.container
    if isinstance(container, ContainerFact) and container.exists:
        if workspace.deleted_at is not None:
            return _claim(workspace, Operation.STOPPING, context)
        if not _may_hold_a_copy(workspace, container, observation):
            sentence = f"In ERROR ({workspace.error_reason}): removing the container."
            return Decision(sentence, workspace, effect=DeleteContainer())
    return Decision(f"In ERROR ({workspace.error_reason}) until it is recovered.", workspace)


def _may_hold_a_copy(workspace: Workspace, container: ContainerFact, observation: Observation) -> bool:
    """Return whether the container runs on a home that is or was missing: its mount may be the only copy."""
    exists = isinstance(observation.volume, VolumeFact)
    seen = exists and holds(workspace.conditions, ConditionName.VOLUME_READY)
    was_missing = workspace.error_reason is ErrorReason.ContainerWithoutVolume
    return container.running and (was_missing or not seen)


def _must_check_again(workspace: Workspace, observation: Observation) -> bool:
    if isinstance(observation.container, Unknown) or isinstance(observation.volume, Unknown):
        return True
    reasons = {workspace.conditions[name].reason for name in ConditionName}
    return VANISHED in reasons


def _restart_ended_ide(workspace: Workspace, observation: Observation, context: Context) -> Decision | None:
    """Start an ended IDE again. An early end counts as a failure, so a crash loop ends in ERROR."""
    running = level_of(workspace.conditions) is Level.RUNNING
    if workspace.started_at is None or running or workspace.desired_state is not DesiredState.RUNNING:
        return None
    after = replace(workspace, started_at=None)
    lived = context.now - workspace.started_at
    message = workspace.conditions[ConditionName.CONTAINER_EXISTS].message
    hangs = isinstance(observation.container, ContainerFact) and observation.container.running
    if observation.is_first or lived >= STABLE_AFTER:
        sentence = "The IDE does not answer." if hangs else "The IDE has ended. Starting it again."
        return Decision(f"{sentence} {message}".rstrip(), after, TimelineEvent.DIED)
    what = "stopped answering" if hangs else "died"
    error = f"The IDE {what} {lived.total_seconds():.0f} s after its start. {message}".rstrip()
    return record_failure(after, Failure(ErrorReason.ActionFailed, error), context)


def _is_stable(workspace: Workspace, context: Context) -> bool:
    if workspace.started_at is None or workspace.error_count == 0:
        return False
    running = level_of(workspace.conditions) is Level.RUNNING
    return running and context.now - workspace.started_at >= STABLE_AFTER


def _claim(workspace: Workspace, operation: Operation, context: Context) -> Decision:
    if operation is Operation.NONE:
        return Decision("Nothing to do.", workspace)
    if waits_for_retry(workspace.next_retry_at, context.rules.retry, context.now):
        return Decision(f"{operation} will be retried at {workspace.next_retry_at:%H:%M:%S}.", workspace)
    after = replace(
        without_waiting_message(without_operation(workspace)),
        operation=operation,
        op_id=context.op_id,
        op_started_at=context.now,
        next_retry_at=None,
    )
    if operation.makes_archive:
        after = replace(after, archive_op_id=context.archive_op_id)
    if operation in (Operation.STOPPING, Operation.ARCHIVING):
        after = replace(after, started_at=None)
    return Decision(BEGUN[operation], after, TimelineEvent.CLAIMED)
