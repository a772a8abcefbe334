"""An operation under way: is it done, has it failed, what is its next effect?"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from codehub.domain.conditions import holds
from codehub.domain.decision import Context, Decision, Event, ended, failed, forgiven
from codehub.domain.effects import (
    ArchiveEmpty,
    ArchiveHome,
    CancelJob,
    DeleteContainer,
    DeleteVolume,
    Effect,
    Provision,
    RestoreHome,
    StartContainer,
    deletion_job_id,
    job_id,
)
from codehub.domain.errors import Failure, is_terminal
from codehub.domain.judge import level_of
from codehub.domain.observation import (
    ArchiveFact,
    ContainerFact,
    Generation,
    JobFact,
    JobState,
    Observation,
    Unknown,
)
from codehub.domain.observe import volume_generation
from codehub.domain.states import (
    CANCELLABLE,
    ConditionName,
    DesiredState,
    ErrorReason,
    Operation,
)
from codehub.domain.wishes import archive_committed, archive_key
from codehub.domain.workspace import RequestKind, Workspace


def step(workspace: Workspace, look: Observation, context: Context) -> Decision:
    """The next decision for a workspace with an operation under way."""
    if workspace.op_started_at is None or look.at < workspace.op_started_at:
        return Decision(f"This look is older than the claim of {workspace.operation}.", workspace)
    moved = _with_progress(workspace, look, context.now)
    if is_done(moved, look):
        return _finished(moved, look, context)
    violation = _violation(moved)
    if violation is not None:
        return _end_after_job(moved, look, lambda: failed(moved, violation, context), "an error")
    if moved.request is not None and moved.request.kind is RequestKind.CANCEL:
        return _cancelled(moved, look)
    if is_timed_out(moved, context):
        return _timed_out(moved, look, context)
    if moved.next_retry_at is not None and context.now < moved.next_retry_at:
        return Decision(f"{moved.operation} will be tried again at {moved.next_retry_at:%H:%M:%S}.", moved)
    return _next_effect(moved, look, context)


def is_done(workspace: Workspace, look: Observation) -> bool:
    """Whether the observed world is what the operation was for."""
    conditions = workspace.conditions
    match workspace.operation:
        case Operation.PROVISIONING | Operation.RESTORING:
            generation = volume_generation(look)
            return generation is not None and generation.op_id == workspace.op_id
        case Operation.STARTING:
            ready = isinstance(look.container, ContainerFact) and look.container.ready
            return ready and holds(conditions, ConditionName.CONTAINER_READY)
        case Operation.STOPPING:
            return not isinstance(look.container, Unknown) and not _exists(workspace)
        case Operation.CREATE_EMPTY_ARCHIVE:
            return archive_committed(workspace) and _archive_seen(workspace, look)
        case Operation.ARCHIVING:
            committed = archive_committed(workspace) and _archive_seen(workspace, look)
            return committed and look.volume is None
        case Operation.DELETING:
            known = not isinstance(look.container, Unknown) and not isinstance(look.volume, Unknown)
            return known and not _exists(workspace) and not holds(conditions, ConditionName.VOLUME_READY)
        case Operation.NONE:
            return False


def is_timed_out(workspace: Workspace, context: Context) -> bool:
    """Progress restarts the clock, so that a huge home that keeps moving is not killed."""
    assert workspace.op_started_at is not None
    since = max(workspace.op_started_at, workspace.progress_at or workspace.op_started_at)
    return context.now - since > context.rules.timeouts[workspace.operation]


def current_job_id(workspace: Workspace) -> str:
    return job_id(workspace.op_id or "", workspace.error_count)


def current_deletion_job_id(workspace: Workspace) -> str:
    return deletion_job_id(workspace.op_id or "", workspace.error_count)


def _exists(workspace: Workspace) -> bool:
    return holds(workspace.conditions, ConditionName.CONTAINER_EXISTS)


def _archive_seen(workspace: Workspace, look: Observation) -> bool:
    return isinstance(look.archive, ArchiveFact) and look.archive.archive_op_id == workspace.archive_op_id


def _with_progress(workspace: Workspace, look: Observation, now: datetime) -> Workspace:
    job = look.deletion or look.job
    if job is None or job.progress is None or job.progress == workspace.progress:
        return workspace
    return replace(workspace, progress=job.progress, progress_at=now)


def _finished(workspace: Workspace, look: Observation, context: Context) -> Decision:
    operation = workspace.operation
    after = _after_success(ended(workspace), operation, context.now)
    if operation in (Operation.PROVISIONING, Operation.RESTORING):
        after = replace(after, home_ctx=volume_generation(look))
    if operation is Operation.ARCHIVING:
        after = replace(after, home_ctx=None)
    consume = workspace.request is not None and workspace.request.kind is RequestKind.CANCEL
    level = level_of(after.conditions)
    return Decision(f"{operation} is done: {level}.", after, Event.FINISHED, consume=consume)


def _after_success(workspace: Workspace, operation: Operation, now: datetime) -> Workspace:
    """A start is forgiven only once it has lasted, a terminal error only by a recovery."""
    if operation is Operation.STARTING:
        return replace(workspace, started_at=now, next_retry_at=None)
    return workspace if is_terminal(workspace.error_reason) else forgiven(workspace)


def _violation(workspace: Workspace) -> Failure | None:
    volume_lost = (
        workspace.home_ctx is not None
        and workspace.conditions[ConditionName.VOLUME_READY].reason == "Missing"
    )
    if volume_lost and _exists(workspace):
        words = "The home is gone while the container is still there. Recover with an archive, or empty."
        return Failure(ErrorReason.ContainerWithoutVolume, words)
    if volume_lost:
        return Failure(ErrorReason.DataLost, LOST_HOME)
    return None


LOST_HOME = (
    "The home directory was there and is gone, and nothing of CodeHub removed it. "
    "If its disk was not mounted, mount it and recover; else recover from an archive, or with an empty home."
)


def _end_after_job(
    workspace: Workspace, look: Observation, end: Callable[[], Decision], why: str
) -> Decision:
    """No operation ends before its job is seen dead."""
    for job, name in (
        (look.job, current_job_id(workspace)),
        (look.deletion, current_deletion_job_id(workspace)),
    ):
        if job is not None and job.state is JobState.RUNNING:
            return Decision(
                f"Stopping the job of {workspace.operation}: {why}.", workspace, effect=CancelJob(name)
            )
    return end()


def _cancelled(workspace: Workspace, look: Observation) -> Decision:
    """The owner ends it: what was begun is stopped, and the workspace rests where it stands."""
    allowed = workspace.operation in CANCELLABLE and workspace.deleted_at is None
    if not allowed or (workspace.operation is Operation.ARCHIVING and archive_committed(workspace)):
        return Decision(f"{workspace.operation} can no longer be cancelled.", workspace, consume=True)
    if workspace.operation is Operation.STARTING and _exists(workspace):
        return Decision("Cancelled: removing the container.", workspace, effect=DeleteContainer())

    def end() -> Decision:
        level = level_of(workspace.conditions)
        after = replace(forgiven(ended(workspace)), started_at=None)
        words = f"{workspace.operation} was cancelled; the workspace rests at {level}."
        return Decision(words, after, Event.CANCELLED, desired=DesiredState(level.value), consume=True)

    return _end_after_job(workspace, look, end, "it was cancelled")


def _timed_out(workspace: Workspace, look: Observation, context: Context) -> Decision:
    if workspace.operation is Operation.STARTING and _exists(workspace):
        return Decision("Timed out: removing the container.", workspace, effect=DeleteContainer())
    limit = context.rules.timeouts[workspace.operation].total_seconds()
    words = f"{workspace.operation} made no progress for {limit:.0f} s."
    if (
        workspace.conditions[ConditionName.CONTAINER_READY].message
        and workspace.operation is Operation.STARTING
    ):
        words = f"{words} {workspace.conditions[ConditionName.CONTAINER_READY].message}"
    failure = Failure(ErrorReason.Timeout, words)
    return _end_after_job(workspace, look, lambda: failed(workspace, failure, context), "it timed out")


def _next_effect(workspace: Workspace, look: Observation, context: Context) -> Decision:
    match workspace.operation:
        case Operation.PROVISIONING:
            return _act(
                workspace, Provision(Generation(workspace.op_id or "", None)), "Making an empty home."
            )
        case Operation.STARTING:
            return _start(workspace, look, context)
        case Operation.STOPPING | Operation.DELETING:
            if _exists(workspace):
                return _act(workspace, DeleteContainer(), "Stopping the container.")
            return Decision(f"{workspace.operation} waits for a fresh look.", workspace)
        case Operation.RESTORING:
            effect = RestoreHome(
                current_job_id(workspace), workspace.op_id or "", workspace.archive_key or ""
            )
            return _by_job(workspace, look.job, look.job_is_ours, effect, context)
        case Operation.CREATE_EMPTY_ARCHIVE:
            return _commit_or(
                workspace,
                look,
                ArchiveEmpty(current_job_id(workspace), workspace.archive_op_id or ""),
                context,
            )
        case _:
            return _archive(workspace, look, context)


def _act(workspace: Workspace, effect: Effect, sentence: str) -> Decision:
    return Decision(sentence, workspace, effect=effect)


def _start(workspace: Workspace, look: Observation, context: Context) -> Decision:
    container = look.container
    if isinstance(container, Unknown) or workspace.home_ctx is None:
        return Decision("STARTING waits for a look at the container.", workspace)
    attempt = job_id(workspace.op_id or "", workspace.error_count)
    if container is not None and container.exists:
        if container.running:
            return Decision("The IDE is starting.", workspace)
        if container.op_id == attempt:
            words = container.message or "The IDE ended right after its start."
            return failed(workspace, Failure(ErrorReason.ActionFailed, words), context)
    return _act(workspace, StartContainer(attempt, workspace.home_ctx), "Starting the IDE.")


def _archive(workspace: Workspace, look: Observation, context: Context) -> Decision:
    """Container gone -> archive uploaded and verified -> archive_key committed -> volume deleted."""
    if isinstance(look.container, Unknown):
        return Decision("ARCHIVING waits until the container can be looked at.", workspace)
    if _exists(workspace):
        return _act(
            workspace, DeleteContainer(), "A container is still there: stopping it before the archive."
        )
    if workspace.home_ctx is None:
        failure = Failure(ErrorReason.ActionFailed, "The home to archive carries no generation.")
        return failed(workspace, failure, context)
    if not archive_committed(workspace):
        effect = ArchiveHome(current_job_id(workspace), workspace.home_ctx, workspace.archive_op_id or "")
        return _commit_or(workspace, look, effect, context)
    if not _archive_seen(workspace, look) or isinstance(look.volume, Unknown):
        return Decision("The volume stays until its archive and itself can be looked at.", workspace)
    deletion = DeleteVolume(current_deletion_job_id(workspace), workspace.home_ctx)
    return _by_job(workspace, look.deletion, look.job_is_ours, deletion, context)


def _commit_or(workspace: Workspace, look: Observation, effect: Effect, context: Context) -> Decision:
    """Commit the archive once it is seen whole and its job is dead; until then let the job make it."""
    if look.job is not None and look.job.state is JobState.RUNNING:
        return Decision(f"{workspace.operation} is under way.", workspace)
    if _archive_seen(workspace, look) and isinstance(look.archive, ArchiveFact):
        key = archive_key(workspace.id, look.archive.archive_op_id)
        after = replace(workspace, archive_key=key)
        words = f"The archive is complete and verified ({look.archive.bytes} bytes): {key}."
        return Decision(words, after, Event.ARCHIVED, archive=look.archive)
    if isinstance(look.archive, Unknown) and look.job is not None and look.job.state is JobState.SUCCEEDED:
        return Decision("The archive cannot be looked at now; waiting.", workspace)
    return _by_job(workspace, look.job, look.job_is_ours, effect, context)


def _by_job(
    workspace: Workspace, job: JobFact | None, ours: bool, effect: Effect, context: Context
) -> Decision:
    """Start the job, wait for it, or take its failure."""
    operation = workspace.operation
    if job is None:
        return _act(workspace, effect, f"Starting the job of {operation}.")
    if job.state is JobState.RUNNING:
        return Decision(f"{operation} is under way.", workspace)
    if job.state is JobState.GONE and not ours:
        return _act(workspace, effect, f"The job of {operation} died with CodeHub: starting it again.")
    if job.state is JobState.GONE:
        return failed(workspace, Failure(ErrorReason.ActionFailed, "The storage job was killed."), context)
    if job.state is JobState.FAILED:
        return failed(workspace, Failure(job.reason or ErrorReason.ActionFailed, job.message), context)
    words = "The storage job said that it was done, but its result is not there."
    return failed(workspace, Failure(ErrorReason.ActionFailed, words), context)
