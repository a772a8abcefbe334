"""Storage jobs of an operation's current attempt: their ids, and what their states lead to."""

from collections.abc import Callable

from codehub.domain.decision import Context, Decision, record_failure
from codehub.domain.effects import CancelJob, Effect, deletion_job_id, job_id
from codehub.domain.error_policy import Failure
from codehub.domain.observation import JobFact, JobState, Observation
from codehub.domain.states import ErrorReason
from codehub.domain.workspace import Workspace


def current_job_id(workspace: Workspace) -> str:
    return job_id(workspace.op_id or "", workspace.error_count)


def current_deletion_job_id(workspace: Workspace) -> str:
    return deletion_job_id(workspace.op_id or "", workspace.error_count)


def running_job_id(workspace: Workspace, observation: Observation) -> str | None:
    """Return the id of this attempt's running job, or None."""
    if observation.job is not None and observation.job.state is JobState.RUNNING:
        return current_job_id(workspace)
    if observation.deletion is not None and observation.deletion.state is JobState.RUNNING:
        return current_deletion_job_id(workspace)
    return None


def end_after_job(
    workspace: Workspace, observation: Observation, end: Callable[[], Decision], why: str
) -> Decision:
    """End the operation, or stop its job first if one is running."""
    running = running_job_id(workspace, observation)
    if running is None:
        return end()
    return Decision(
        f"Stopping the job of {workspace.operation}: {why}.", workspace, effect=CancelJob(running)
    )


def run_job(
    workspace: Workspace, job: JobFact | None, ours: bool, effect: Effect, context: Context
) -> Decision:
    """Start the job, wait for it, or record its failure."""
    operation = workspace.operation
    if job is None:
        return Decision(f"Starting the job of {operation}.", workspace, effect=effect)
    if job.state is JobState.RUNNING:
        return Decision(f"{operation} is under way.", workspace)
    if job.state is JobState.GONE and not ours:
        message = f"The job of {operation} ended together with CodeHub. Starting it again."
        return Decision(message, workspace, effect=effect)
    if job.state is JobState.GONE:
        return record_failure(
            workspace, Failure(ErrorReason.ActionFailed, "The storage job was killed."), context
        )
    if job.state is JobState.FAILED:
        return record_failure(
            workspace, Failure(job.reason or ErrorReason.ActionFailed, job.message), context
        )
    message = "The storage job reported success, but its result is missing."
    return record_failure(workspace, Failure(ErrorReason.ActionFailed, message), context)
