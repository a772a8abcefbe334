"""Decision for an operation under way: done, failed, cancelled, waiting, or its next effect."""

from dataclasses import replace
from datetime import datetime

from codehub.domain import timeline_text
from codehub.domain.allowed_changes import archive_committed, archives_for_restore
from codehub.domain.attempt_jobs import end_after_job, running_job_id
from codehub.domain.conditions import holds
from codehub.domain.data_loss import home_loss
from codehub.domain.decision import (
    Context,
    Decision,
    TimelineEvent,
    record_failure,
    without_errors,
    without_operation,
    without_waiting_message,
)
from codehub.domain.disk import START_WAITS
from codehub.domain.effects import DeleteContainer
from codehub.domain.error_policy import Failure, is_terminal, waits_for_retry
from codehub.domain.judge import level_of
from codehub.domain.next_effect import archive_seen, container_exists, next_effect
from codehub.domain.observation import ArchiveFact, ContainerFact, Observation, Progress, Unknown
from codehub.domain.observed_conditions import VANISHED, volume_generation
from codehub.domain.states import CANCELLABLE, ConditionName, DesiredState, ErrorReason, Operation
from codehub.domain.workspace import RequestKind, Workspace


def continue_operation(workspace: Workspace, observation: Observation, context: Context) -> Decision:
    """Decide about a workspace with an operation under way."""
    if workspace.op_started_at is not None and workspace.op_started_at > context.now:
        return _restart_timeout(workspace, context)
    if workspace.op_started_at is None or observation.at < workspace.op_started_at:
        return Decision(f"This observation is older than the claim of {workspace.operation}.", workspace)
    moved = _with_progress(workspace, observation, context.now)
    if isinstance(observation.volume, Unknown) and moved.operation.moves_home:
        # Without this, the operation could end without knowing whether it has made or removed the home.
        return Decision(f"{moved.operation} waits until the home can be checked.", moved)
    loss = home_loss(moved)
    if loss is not None and not is_terminal(moved.error_reason):
        return end_after_job(
            moved, observation, lambda: _record_loss(moved, loss, observation, context), "the home is lost"
        )
    if is_done(moved, observation):
        return _remove_earlier_container(moved, observation) or _finish_after_job(moved, observation, context)
    if _is_cancelled(moved):
        return _cancel_operation(moved, observation)
    if is_timed_out(moved, context):
        return _time_out(moved, observation, context)
    if waits_for_retry(moved.next_retry_at, context.rules.retry, context.now):
        return Decision(f"{moved.operation} will be retried at {moved.next_retry_at:%H:%M:%S}.", moved)
    if moved.conditions[ConditionName.VOLUME_READY].reason == VANISHED:
        return Decision(f"{moved.operation} waits: the home is missing. Checking again.", moved)
    return next_effect(moved, observation, context)


def _restart_timeout(workspace: Workspace, context: Context) -> Decision:
    """Set the claim's time to now. Otherwise every observation would be older than the claim."""
    sentence = f"The clock was set back during {workspace.operation}. Its timeout starts again."
    return Decision(sentence, replace(workspace, op_started_at=context.now, progress_at=None))


def _record_loss(workspace: Workspace, loss: Failure, observation: Observation, context: Context) -> Decision:
    """Record the loss. Also record an archive completed before it, which the owner may choose."""
    complete = (
        observation.archive
        if archive_seen(workspace, observation) and isinstance(observation.archive, ArchiveFact)
        else None
    )
    return replace(record_failure(workspace, loss, context), archive=complete)


def is_done(workspace: Workspace, observation: Observation) -> bool:
    """Return whether the observation shows that the operation has reached its goal."""
    conditions = workspace.conditions
    match workspace.operation:
        case Operation.PROVISIONING | Operation.RESTORING:
            generation = volume_generation(observation)
            return generation is not None and generation.op_id == workspace.op_id
        case Operation.STARTING:
            ready = isinstance(observation.container, ContainerFact) and observation.container.ready
            return ready and holds(conditions, ConditionName.CONTAINER_READY)
        case Operation.STOPPING:
            return not isinstance(observation.container, Unknown) and not container_exists(workspace)
        case Operation.CREATE_EMPTY_ARCHIVE:
            return archive_committed(workspace) and archive_seen(workspace, observation)
        case Operation.ARCHIVING:
            committed = archive_committed(workspace) and archive_seen(workspace, observation)
            return committed and observation.volume is None
        case Operation.DELETING:
            known = not isinstance(observation.container, Unknown) and not isinstance(
                observation.volume, Unknown
            )
            absent = not holds(conditions, ConditionName.VOLUME_READY)
            return known and absent and not container_exists(workspace)
        case Operation.NONE:
            return False


def is_timed_out(workspace: Workspace, context: Context) -> bool:
    """Return whether the operation has made no progress for its timeout. A large home may take longer."""
    assert workspace.op_started_at is not None
    since = max(workspace.op_started_at, workspace.progress_at or workspace.op_started_at)
    return context.now - since > context.rules.timeouts[workspace.operation]


def _with_progress(workspace: Workspace, observation: Observation, now: datetime) -> Workspace:
    """Return the workspace with the bytes that a job has moved, or the layers pulled of an image."""
    progress = _progress(workspace, observation)
    if progress is None or progress == workspace.progress:
        return workspace
    return replace(workspace, progress=progress, progress_at=now)


def _progress(workspace: Workspace, observation: Observation) -> Progress | None:
    job = observation.deletion or observation.job
    if job is not None:
        return job.progress
    if workspace.operation is Operation.STARTING and isinstance(observation.container, ContainerFact):
        return observation.container.progress
    return None


def _remove_earlier_container(workspace: Workspace, observation: Observation) -> Decision | None:
    """Remove a container that an earlier home left behind: its directory is no longer the home."""
    if workspace.operation not in (Operation.PROVISIONING, Operation.RESTORING):
        return None
    if isinstance(observation.container, Unknown):
        return Decision(f"{workspace.operation} waits until the container can be checked.", workspace)
    if container_exists(workspace):
        sentence = "Removing a container that was started on an earlier home."
        return Decision(sentence, workspace, effect=DeleteContainer())
    return None


def _finish_after_job(workspace: Workspace, observation: Observation, context: Context) -> Decision:
    if running_job_id(workspace, observation) is not None and not is_timed_out(workspace, context):
        return Decision(f"{workspace.operation} is done. Its job is ending.", workspace)
    return end_after_job(
        workspace, observation, lambda: _finish_operation(workspace, observation, context), "it does not end"
    )


def _finish_operation(workspace: Workspace, observation: Observation, context: Context) -> Decision:
    operation = workspace.operation
    after = _clear_errors(without_operation(workspace), operation, context.now)
    if operation in (Operation.PROVISIONING, Operation.RESTORING):
        after = replace(after, home_ctx=volume_generation(observation))
    if operation is Operation.ARCHIVING:
        after = replace(after, home_ctx=None)
    assert workspace.op_started_at is not None
    message = timeline_text.finished(operation, context.now - workspace.op_started_at)
    if operation is Operation.RESTORING and observation.job is not None and observation.job.changed:
        message = f"{message} It {observation.job.changed}."
    if not _is_cancelled(workspace):
        return Decision(message, after, TimelineEvent.FINISHED)
    level = level_of(after.conditions)
    desired = DesiredState(level.value) if workspace.deleted_at is None else None
    return Decision(
        f"{message} The cancel came too late.", after, TimelineEvent.FINISHED, desired=desired, consume=True
    )


def _clear_errors(workspace: Workspace, operation: Operation, now: datetime) -> Workspace:
    """Clear the errors.

    Errors of a start stay until the IDE has run for a while. Terminal errors stay until a recovery.
    """
    if operation is Operation.STARTING:
        return replace(without_waiting_message(workspace), started_at=now, next_retry_at=None)
    return workspace if is_terminal(workspace.error_reason) else without_errors(workspace)


def _is_cancelled(workspace: Workspace) -> bool:
    return workspace.request is not None and workspace.request.kind is RequestKind.CANCEL


def _cancel_operation(workspace: Workspace, observation: Observation) -> Decision:
    """Stop what was begun and keep the workspace at its level, if the operation can be cancelled."""
    allowed = workspace.operation in CANCELLABLE and workspace.deleted_at is None
    if not allowed or _is_removing_home(workspace, observation):
        return Decision(f"{workspace.operation} can no longer be cancelled.", workspace, consume=True)
    if workspace.operation is Operation.STARTING and container_exists(workspace):
        return Decision("Cancelled: removing the container.", workspace, effect=DeleteContainer())

    def end() -> Decision:
        level = level_of(workspace.conditions)
        return _stay_at_level(workspace, f"Cancelled. The workspace stays at {level}.")

    return end_after_job(workspace, observation, end, "it was cancelled")


def _is_removing_home(workspace: Workspace, observation: Observation) -> bool:
    if workspace.operation is not Operation.ARCHIVING or not archive_committed(workspace):
        return False
    return not archives_for_restore(workspace) or observation.deletion is not None


def _stay_at_level(workspace: Workspace, sentence: str) -> Decision:
    """End the operation without an error. The level becomes the desired state."""
    after = replace(without_errors(without_operation(workspace)), started_at=None)
    desired = DesiredState(level_of(workspace.conditions).value)
    return Decision(sentence, after, TimelineEvent.CANCELLED, desired=desired, consume=True)


def wait_for_disk_space(workspace: Workspace, message: str, now: datetime) -> Decision:
    """Let an operation wait for disk space, or give it up after START_WAITS (ADR 0019).

    A deleted workspace starts nothing, so the desired state may always be set to the level.
    """
    assert workspace.op_started_at is not None
    if now - workspace.op_started_at < START_WAITS:
        shown = message if workspace.error_reason is None else workspace.error_message
        return Decision(message, replace(workspace, progress_at=now, error_message=shown))
    decision = _stay_at_level(workspace, f"{workspace.operation} was given up. {message}")
    return replace(decision, after=replace(decision.after, error_message=message))


def _time_out(workspace: Workspace, observation: Observation, context: Context) -> Decision:
    starting = workspace.operation is Operation.STARTING
    if starting and container_exists(workspace):
        return Decision("Timed out: removing the container.", workspace, effect=DeleteContainer())
    limit = context.rules.timeouts[workspace.operation].total_seconds()
    error = f"{workspace.operation} made no progress for {limit:.0f} s."
    message = workspace.conditions[ConditionName.CONTAINER_READY].message
    if starting and message:
        error = f"{error} {message}"
    failure = Failure(ErrorReason.Timeout, error)
    return end_after_job(
        workspace, observation, lambda: record_failure(workspace, failure, context), "it timed out"
    )
