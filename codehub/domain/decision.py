"""Result of `plan`: the new row, an effect, and a sentence for the timeline (ADR 0001)."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from codehub.domain.conditions import holds
from codehub.domain.effects import Effect
from codehub.domain.error_policy import Failure, RetryPolicy, failure_outcome, is_terminal
from codehub.domain.judge import judge
from codehub.domain.observation import ArchiveFact, Generation
from codehub.domain.observed_conditions import removes_volume
from codehub.domain.other_backends import Backends
from codehub.domain.states import ConditionName, DesiredState, Operation
from codehub.domain.workspace import Workspace


class TimelineEvent(StrEnum):
    """Kind of a timeline entry."""

    CLAIMED = "claimed"
    FINISHED = "finished"
    FAILED = "failed"
    ERROR = "error"
    ARCHIVED = "archived"
    RECOVERED = "recovered"
    CHOSEN = "chosen"
    DROPPED = "dropped"
    CANCELLED = "cancelled"
    DIED = "died"
    REPLACED = "replaced"
    LOST = "lost"


DEFAULT_TIMEOUTS = {
    Operation.PROVISIONING: timedelta(seconds=300),
    Operation.CREATE_EMPTY_ARCHIVE: timedelta(seconds=300),
    Operation.STARTING: timedelta(seconds=300),
    Operation.STOPPING: timedelta(seconds=300),
    Operation.DELETING: timedelta(seconds=600),
    Operation.ARCHIVING: timedelta(seconds=1800),
    Operation.RESTORING: timedelta(seconds=1800),
}


@dataclass(frozen=True)
class PlanRules:
    """Settings that decisions depend on."""

    retry: RetryPolicy
    timeouts: dict[Operation, timedelta]
    backends: Backends


DEFAULT_RULES = PlanRules(RetryPolicy(), DEFAULT_TIMEOUTS, Backends("process", "local-dir"))


@dataclass(frozen=True)
class Context:
    """Time, rules, and fresh ids and randomness for a decision."""

    now: datetime
    rules: PlanRules
    op_id: str
    archive_op_id: str
    jitter: float


@dataclass(frozen=True)
class Decision:
    """Decision about one workspace.

    `after` differs from the row only in the controller's columns. `consume` clears the request, and
    `desired` sets the desired state.
    """

    sentence: str
    after: Workspace
    event: TimelineEvent | None = None
    effect: Effect | None = None
    archive: ArchiveFact | None = None
    keep_archives: bool = False
    desired: DesiredState | None = None
    consume: bool = False

    def writes(self, before: Workspace) -> bool:
        """Return whether there is anything to save."""
        return self.changes_request or self.event is not None or bool(changed_columns(before, self.after))

    @property
    def changes_request(self) -> bool:
        return self.consume or self.desired is not None

    def saved_row(self) -> Workspace:
        """Return the row after the decision was saved."""
        if not self.changes_request:
            return self.after
        return replace(self.after, request=None, desired_state=self.desired or self.after.desired_state)


CONTROLLER_COLUMNS = (
    "conditions", "observed_at", "phase", "phase_changed_at", "operation", "op_id", "op_started_at",
    "progress", "progress_at", "archive_op_id", "archive_key", "upstream", "error_count", "error_reason",
    "error_message", "next_retry_at", "started_at", "home_ctx",
)  # fmt: skip
"""Columns that only the controller writes (contract 3)."""


def changed_columns(before: Workspace, after: Workspace) -> dict[str, object]:
    """Return the controller's columns that differ, with their new values."""
    old, new = before.__dict__, after.__dict__
    return {name: new[name] for name in CONTROLLER_COLUMNS if new[name] != old[name]}


def with_phase(decision: Decision, now: datetime) -> Decision:
    """Return the decision with the phase that follows from its conditions."""
    after = decision.after
    phase = judge(after.conditions, after.deleted_at, after.error_reason, after.grace_waived_at)
    if phase is not after.phase:
        after = replace(after, phase=phase, phase_changed_at=now)
    return replace(decision, after=after)


def without_operation(workspace: Workspace) -> Workspace:
    """Return the workspace with no operation under way.

    A home that the operation has made becomes the workspace's home, however the operation ends.
    """
    return replace(
        workspace,
        operation=Operation.NONE,
        op_id=None,
        op_started_at=None,
        progress=None,
        progress_at=None,
        home_ctx=_generation_made_by_operation(workspace) or workspace.home_ctx,
    )


def _generation_made_by_operation(workspace: Workspace) -> Generation | None:
    makes_home = workspace.operation in (Operation.PROVISIONING, Operation.RESTORING)
    exists = holds(workspace.conditions, ConditionName.VOLUME_READY)
    if not makes_home or not exists or workspace.op_id is None:
        return None
    restored = workspace.archive_key if workspace.operation is Operation.RESTORING else None
    return Generation(workspace.op_id, restored)


def without_errors(workspace: Workspace) -> Workspace:
    """Return the workspace with its error fields cleared."""
    return replace(workspace, error_reason=None, error_count=0, error_message=None, next_retry_at=None)


def without_waiting_message(workspace: Workspace) -> Workspace:
    """Return the workspace without a message that says what its last operation waited for."""
    return workspace if workspace.error_reason is not None else replace(workspace, error_message=None)


def record_failure(workspace: Workspace, failure: Failure, context: Context) -> Decision:
    """Decide what follows a failure: a retry within the same claim, or ERROR."""
    if is_terminal(workspace.error_reason):
        return _record_failure_in_error(workspace, failure, context)
    outcome = failure_outcome(
        failure, workspace.error_count, context.rules.retry, context.now, context.jitter
    )
    during = "" if workspace.operation is Operation.NONE else f" during {workspace.operation}"
    after = replace(
        workspace,
        error_reason=outcome.reason,
        error_count=outcome.count,
        error_message=f"{outcome.message} ({outcome.reason}{during}, {context.now:%Y-%m-%d %H:%M:%S} UTC)",
        next_retry_at=outcome.next_retry_at,
    )
    if outcome.terminal:
        after = replace(without_operation(after), started_at=None)
        if _has_removed_home(workspace):
            after = replace(after, home_ctx=None)
        return Decision(f"{outcome.reason}{during}: {outcome.message}", after, TimelineEvent.ERROR)
    return Decision(
        f"Attempt {outcome.count}{during} failed and will be retried: {outcome.message}",
        after,
        TimelineEvent.FAILED,
    )


def _record_failure_in_error(workspace: Workspace, failure: Failure, context: Context) -> Decision:
    """Decide what follows a failure in ERROR. The error that led there stays recorded."""
    if workspace.operation is Operation.NONE and workspace.request is None:
        sentence = f"The container could not be removed. CodeHub will retry. {failure.message}"
        return Decision(sentence, workspace)
    if workspace.operation is Operation.NONE:
        sentence = f"The recovery failed. Fix the cause, then recover again. {failure.message}"
        return Decision(sentence, workspace, TimelineEvent.FAILED, consume=True)
    later = context.now + context.rules.retry.backoff
    sentence = f"{workspace.operation} failed and will be retried: {failure.message}"
    return Decision(
        sentence, replace(without_operation(workspace), next_retry_at=later), TimelineEvent.FAILED
    )


def _has_removed_home(workspace: Workspace) -> bool:
    """Return whether CodeHub has removed the volume after its archive was committed.

    It must not count as lost.
    """
    return removes_volume(workspace) and not holds(workspace.conditions, ConditionName.VOLUME_READY)
