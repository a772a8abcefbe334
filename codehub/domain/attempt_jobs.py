"""The jobs of an operation's present attempt: what they are called, and what their state means."""

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
    """The job of this attempt that is alive, if one is."""
    if observation.job is not None and observation.job.state is JobState.RUNNING:
        return current_job_id(workspace)
    if observation.deletion is not None and observation.deletion.state is JobState.RUNNING:
        return current_deletion_job_id(workspace)
    return None


def end_after_job(
    workspace: Workspace, observation: Observation, end: Callable[[], Decision], why: str
) -> Decision:
    """No operation ends before its job is seen dead."""
    alive = running_job_id(workspace, observation)
    if alive is None:
        return end()
    return Decision(f"Stopping the job of {workspace.operation}: {why}.", workspace, effect=CancelJob(alive))


def run_job(
    workspace: Workspace, job: JobFact | None, ours: bool, effect: Effect, context: Context
) -> Decision:
    """Start the job, wait for it, or take its failure."""
    operation = workspace.operation
    if job is None:
        return Decision(f"Starting the job of {operation}.", workspace, effect=effect)
    if job.state is JobState.RUNNING:
        return Decision(f"{operation} is under way.", workspace)
    if job.state is JobState.GONE and not ours:
        words = f"The job of {operation} died with CodeHub: starting it again."
        return Decision(words, workspace, effect=effect)
    if job.state is JobState.GONE:
        return record_failure(
            workspace, Failure(ErrorReason.ActionFailed, "The storage job was killed."), context
        )
    if job.state is JobState.FAILED:
        return record_failure(
            workspace, Failure(job.reason or ErrorReason.ActionFailed, job.message), context
        )
    words = "The storage job said that it was done, but its result is not there."
    return record_failure(workspace, Failure(ErrorReason.ActionFailed, words), context)
