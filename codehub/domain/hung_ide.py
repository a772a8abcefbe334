"""Replacement of an IDE that hangs during its start (ADR 0026)."""

from dataclasses import replace
from datetime import datetime

from codehub.domain.attempt_jobs import current_job_id
from codehub.domain.decision import Context, Decision, TimelineEvent, record_failure
from codehub.domain.effects import DeleteContainer
from codehub.domain.error_policy import Failure
from codehub.domain.observation import ContainerFact, Observation
from codehub.domain.states import ErrorReason, Operation
from codehub.domain.workspace import Workspace


def replace_if_hung(
    workspace: Workspace, container: ContainerFact, observation: Observation, context: Context
) -> Decision | None:
    """Replace an IDE that has not answered for half of the start timeout; None leaves it alone.

    A slow start may be mistaken for a hung one and must still succeed. So an operation replaces an
    IDE that it started at most once, and its timeout starts again for the second one.
    """
    since = _silent_since(workspace, observation)
    if since is None or container.op_id is None:
        return None
    waited = context.now - since
    if waited <= context.rules.timeouts[Operation.STARTING] / 2:
        return None
    message = f"The IDE runs and has not answered for {waited.total_seconds():.0f} s."
    if container.op_id == current_job_id(workspace):
        return _replace_own_ide(workspace, message, context)
    if workspace.progress_at is not None and workspace.progress_at > since:
        return Decision("Removing the IDE that does not answer.", workspace, effect=DeleteContainer())
    after = replace(workspace, progress_at=context.now)
    return Decision(f"{message} Starting it again.", after, TimelineEvent.REPLACED, effect=DeleteContainer())


def _silent_since(workspace: Workspace, observation: Observation) -> datetime | None:
    """Return when the operation began to wait for this container, as far as this controller knows."""
    if workspace.op_started_at is None or observation.silent_since is None:
        return None
    return max(workspace.op_started_at, observation.silent_since)


def _replace_own_ide(workspace: Workspace, message: str, context: Context) -> Decision | None:
    """Count a start that hangs as a failed attempt. The next attempt removes its container."""
    if workspace.error_count > 0 or context.rules.retry.max_retries < 2:
        return None
    decision = record_failure(workspace, Failure(ErrorReason.ActionFailed, message), context)
    return replace(decision, after=replace(decision.after, progress_at=context.now))
