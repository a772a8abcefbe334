"""A decision: the workspace as it shall be, what is to be done, and one sentence that says why."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from codehub.domain.backends import Backends
from codehub.domain.conditions import holds
from codehub.domain.effects import Effect
from codehub.domain.error_policy import Failure, RetryPolicy, failure_outcome, is_terminal
from codehub.domain.judge import judge
from codehub.domain.observation import ArchiveFact, Generation
from codehub.domain.observed_conditions import removes_volume
from codehub.domain.states import ConditionName, DesiredState, Operation
from codehub.domain.workspace import Workspace


class TimelineEvent(StrEnum):
    """What a timeline entry is about."""

    CLAIMED = "claimed"
    FINISHED = "finished"
    FAILED = "failed"
    ERROR = "error"
    ARCHIVED = "archived"
    RECOVERED = "recovered"
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
    """The settings that decisions depend on."""

    retry: RetryPolicy
    timeouts: dict[Operation, timedelta]
    backends: Backends


DEFAULT_RULES = PlanRules(RetryPolicy(), DEFAULT_TIMEOUTS, Backends("process", "local-dir"))


@dataclass(frozen=True)
class Context:
    """What a decision is made in: the time, the rules, and fresh values for what it may need."""

    now: datetime
    rules: PlanRules
    op_id: str
    archive_op_id: str
    jitter: float


@dataclass(frozen=True)
class Decision:
    """`after` holds only the controller's columns changed; `desired` and `consume` are about the wish."""

    sentence: str
    after: Workspace
    event: TimelineEvent | None = None
    effect: Effect | None = None
    archive: ArchiveFact | None = None
    keep_archives: bool = False
    desired: DesiredState | None = None
    consume: bool = False

    def writes(self, before: Workspace) -> bool:
        """Whether there is anything to save."""
        return self.changes_request or self.event is not None or bool(changed_columns(before, self.after))

    @property
    def changes_request(self) -> bool:
        return self.consume or self.desired is not None

    def saved(self) -> Workspace:
        """The row as it shall be: a request that was taken is gone, and a cancelled workspace rests."""
        if not self.changes_request:
            return self.after
        return replace(self.after, request=None, desired_state=self.desired or self.after.desired_state)


CONTROLLER_COLUMNS = (
    "conditions", "observed_at", "phase", "phase_changed_at", "operation", "op_id", "op_started_at",
    "progress", "progress_at", "archive_op_id", "archive_key", "upstream", "error_count", "error_reason",
    "error_message", "next_retry_at", "started_at", "home_ctx",
)  # fmt: skip
"""What the controller alone writes (contract 3)."""


def changed_columns(before: Workspace, after: Workspace) -> dict[str, object]:
    """The controller's columns in which a workspace as it shall be differs from the row."""
    old, new = before.__dict__, after.__dict__
    return {name: new[name] for name in CONTROLLER_COLUMNS if new[name] != old[name]}


def with_phase(decision: Decision, now: datetime) -> Decision:
    """The decision with the phase that follows from it."""
    after = decision.after
    phase = judge(after.conditions, after.deleted_at, after.error_reason, after.grace_waived_at)
    if phase is not after.phase:
        after = replace(after, phase=phase, phase_changed_at=now)
    return replace(decision, after=after)


def without_operation(workspace: Workspace) -> Workspace:
    """The workspace with no operation under way. A home that it has made is the home, however it ends."""
    return replace(
        workspace,
        operation=Operation.NONE,
        op_id=None,
        op_started_at=None,
        progress=None,
        progress_at=None,
        home_ctx=_made_home(workspace) or workspace.home_ctx,
    )


def _made_home(workspace: Workspace) -> Generation | None:
    makes = workspace.operation in (Operation.PROVISIONING, Operation.RESTORING)
    if not makes or workspace.op_id is None or not holds(workspace.conditions, ConditionName.VOLUME_READY):
        return None
    restored = workspace.archive_key if workspace.operation is Operation.RESTORING else None
    return Generation(workspace.op_id, restored)


def without_errors(workspace: Workspace) -> Workspace:
    """The workspace with its errors forgotten."""
    return replace(workspace, error_reason=None, error_count=0, error_message=None, next_retry_at=None)


def without_waiting_message(workspace: Workspace) -> Workspace:
    """The workspace without a message that belongs to no error: what its last operation waited for."""
    return workspace if workspace.error_reason is not None else replace(workspace, error_message=None)


def record_failure(workspace: Workspace, failure: Failure, context: Context) -> Decision:
    """One more failure: tried again later within the same claim, or the end of it in ERROR."""
    if is_terminal(workspace.error_reason):
        return _failed_in_error(workspace, failure, context)
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
        f"Attempt {outcome.count}{during} failed, trying again: {outcome.message}",
        after,
        TimelineEvent.FAILED,
    )


def _failed_in_error(workspace: Workspace, failure: Failure, context: Context) -> Decision:
    """The first cause stays on record: the container could not be removed, or a recovery not begin."""
    if workspace.operation is Operation.NONE and workspace.request is None:
        words = f"The container could not be removed and will be tried again: {failure.message}"
        return Decision(words, workspace)
    if workspace.operation is Operation.NONE:
        words = f"The recovery failed; ask for it again when this is mended: {failure.message}"
        return Decision(words, workspace, TimelineEvent.FAILED, consume=True)
    later = context.now + context.rules.retry.backoff
    words = f"{workspace.operation} failed and will be tried again: {failure.message}"
    return Decision(words, replace(without_operation(workspace), next_retry_at=later), TimelineEvent.FAILED)


def _has_removed_home(workspace: Workspace) -> bool:
    """The archive is committed and the volume is gone by our own hand: it must not pass for lost later."""
    return removes_volume(workspace) and not holds(workspace.conditions, ConditionName.VOLUME_READY)
