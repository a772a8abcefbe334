"""Next effect of an operation.

Effects name generations and ids, so they can be repeated (ADR 0002).
"""

from dataclasses import replace

from codehub.domain.allowed_changes import archive_committed
from codehub.domain.archive_keys import archive_key
from codehub.domain.attempt_jobs import current_deletion_job_id, current_job_id, end_after_job, run_job
from codehub.domain.conditions import holds
from codehub.domain.data_loss import archive_loss
from codehub.domain.decision import Context, Decision, TimelineEvent, record_failure, without_operation
from codehub.domain.effects import (
    ArchiveEmpty,
    ArchiveHome,
    DeleteContainer,
    DeleteVolume,
    Effect,
    Provision,
    RestoreHome,
    StartContainer,
    job_id,
)
from codehub.domain.error_policy import Failure
from codehub.domain.hung_ide import replace_if_hung
from codehub.domain.observation import (
    ArchiveFact,
    Generation,
    JobState,
    Observation,
    Skipped,
    Unknown,
    VolumeFact,
)
from codehub.domain.observed_conditions import VANISHED
from codehub.domain.restore_request import wait_or_drop
from codehub.domain.states import ConditionName, ErrorReason, Operation
from codehub.domain.workspace import Workspace


def next_effect(workspace: Workspace, observation: Observation, context: Context) -> Decision:
    op_id = workspace.op_id or ""
    match workspace.operation:
        case Operation.PROVISIONING | Operation.RESTORING if container_exists(workspace):
            return _decide_effect(workspace, DeleteContainer(), "Removing a container that has no home.")
        case Operation.PROVISIONING:
            return _decide_effect(workspace, Provision(Generation(op_id, None)), "Creating an empty home.")
        case Operation.STARTING:
            return _start_ide(workspace, observation, context)
        case Operation.STOPPING | Operation.DELETING:
            if container_exists(workspace):
                return _decide_effect(workspace, DeleteContainer(), "Stopping the container.")
            return Decision(f"{workspace.operation} waits for the next observation.", workspace)
        case Operation.RESTORING:
            return _restore_home(workspace, observation, context)
        case Operation.CREATE_EMPTY_ARCHIVE:
            empty = ArchiveEmpty(current_job_id(workspace), workspace.archive_op_id or "")
            return _commit_archive_or_run_effect(workspace, observation, empty, context)
        case _:
            return _archive_home(workspace, observation, context)


def container_exists(workspace: Workspace) -> bool:
    return holds(workspace.conditions, ConditionName.CONTAINER_EXISTS)


def archive_seen(workspace: Workspace, observation: Observation) -> bool:
    """Return whether this observation shows the complete archive of the current claim."""
    return (
        isinstance(observation.archive, ArchiveFact)
        and observation.archive.archive_op_id == workspace.archive_op_id
    )


def _decide_effect(workspace: Workspace, effect: Effect, sentence: str) -> Decision:
    return Decision(sentence, workspace, effect=effect)


def _start_ide(workspace: Workspace, observation: Observation, context: Context) -> Decision:
    container = observation.container
    if (
        isinstance(container, Unknown)
        or isinstance(observation.volume, Unknown)
        or workspace.home_ctx is None
    ):
        return Decision("STARTING waits until the container and its home can be checked.", workspace)
    attempt = job_id(workspace.op_id or "", workspace.error_count)
    if container is not None and container.exists:
        if container.running:
            waits = Decision("The IDE is starting.", workspace)
            return replace_if_hung(workspace, container, observation, context) or waits
        if container.op_id == attempt:
            message = container.message or "The IDE ended right after its start."
            return record_failure(workspace, Failure(ErrorReason.ActionFailed, message), context)
    return _decide_effect(workspace, StartContainer(attempt, workspace.home_ctx), "Starting the IDE.")


def _restore_home(workspace: Workspace, observation: Observation, context: Context) -> Decision:
    """Restore the home.

    A job that already reads the archive goes on even if the archive goes missing.
    """
    if observation.job is None:
        if workspace.conditions[ConditionName.ARCHIVE_READY].reason == VANISHED:
            return Decision("RESTORING waits: the archive is missing. Checking again.", workspace)
        loss = archive_loss(workspace)
        if loss is not None:
            return record_failure(workspace, loss, context)
    restore = RestoreHome(current_job_id(workspace), workspace.op_id or "", workspace.archive_key or "")
    return run_job(workspace, observation.job, observation.job_is_ours, restore, context)


def _archive_home(workspace: Workspace, observation: Observation, context: Context) -> Decision:
    """Remove the container, upload and verify the archive, commit its key, delete the volume."""
    if isinstance(observation.container, Unknown):
        return Decision("ARCHIVING waits until the container can be checked.", workspace)
    if container_exists(workspace):
        return _stop_container_before_archive(workspace, observation)
    if workspace.home_ctx is None:
        failure = Failure(ErrorReason.ActionFailed, "The home to archive has no recorded generation.")
        return end_after_job(
            workspace, observation, lambda: record_failure(workspace, failure, context), "an error"
        )
    if not archive_committed(workspace):
        effect = ArchiveHome(current_job_id(workspace), workspace.home_ctx, workspace.archive_op_id or "")
        return _commit_archive_or_run_effect(workspace, observation, effect, context)
    if not archive_seen(workspace, observation) or isinstance(observation.volume, Unknown):
        return Decision("The volume stays until it and its archive can be checked.", workspace)
    if observation.deletion is not None and observation.deletion.outdated:
        return _fail_and_archive_again(workspace, observation.deletion.message, context)
    if workspace.archive_to_restore is not None and observation.deletion is None:
        hindrance = wait_or_drop(workspace, observation)
        if hindrance is not None:
            return end_after_job(workspace, observation, lambda: hindrance, "the chosen archive is gone")
    deletion = DeleteVolume(current_deletion_job_id(workspace), workspace.home_ctx)
    return run_job(workspace, observation.deletion, observation.job_is_ours, deletion, context)


def _stop_container_before_archive(workspace: Workspace, observation: Observation) -> Decision:
    """Stop a container first.

    An archive begun beside it may miss what it writes, so it is made again.
    """
    begun = observation.job is not None or archive_committed(workspace)
    if not begun or not isinstance(observation.volume, VolumeFact):
        return _decide_effect(
            workspace, DeleteContainer(), "A container is still there: stopping it before the archive."
        )
    sentence = "A container appeared while the home was being archived. The archive will be made again."
    return end_after_job(
        workspace,
        observation,
        lambda: Decision(sentence, without_operation(workspace), TimelineEvent.FAILED),
        "a container has appeared",
    )


def _fail_and_archive_again(workspace: Workspace, message: str, context: Context) -> Decision:
    """End the operation, so that another claim archives the changed home again (ADR 0015)."""
    decision = record_failure(workspace, Failure(ErrorReason.ActionFailed, message), context)
    return replace(decision, after=without_operation(decision.after))


def _commit_archive_or_run_effect(
    workspace: Workspace, observation: Observation, effect: Effect, context: Context
) -> Decision:
    """Commit the archive once it is complete and its job has ended.

    Until then let the job make it.
    """
    if observation.job is not None and observation.job.state is JobState.RUNNING:
        return Decision(f"{workspace.operation} is under way.", workspace)
    if archive_seen(workspace, observation) and isinstance(observation.archive, ArchiveFact):
        key = archive_key(workspace.id, observation.archive.archive_op_id)
        after = replace(workspace, archive_key=key)
        sentence = f"The archive is complete and verified ({observation.archive.bytes} bytes): {key}."
        if observation.job is not None and observation.job.left_out:
            sentence = f"{sentence} It {observation.job.left_out}."
        return Decision(sentence, after, TimelineEvent.ARCHIVED, archive=observation.archive)
    unseen = isinstance(observation.archive, Unknown | Skipped)
    if unseen and observation.job is not None and observation.job.state is JobState.SUCCEEDED:
        return Decision("The archive cannot be checked now. Waiting.", workspace)
    return run_job(workspace, observation.job, observation.job_is_ours, effect, context)
