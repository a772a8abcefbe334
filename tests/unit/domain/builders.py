"""Builders of workspaces, observations and contexts, with defaults for everything."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from codehub.domain.archive_keys import archive_key
from codehub.domain.conditions import Condition, Conditions
from codehub.domain.decision import DEFAULT_RULES, Context, Decision
from codehub.domain.observation import (
    SKIPPED,
    ArchiveFact,
    ContainerFact,
    Generation,
    JobFact,
    JobState,
    Observation,
    Progress,
    Skipped,
    Unknown,
    VolumeFact,
)
from codehub.domain.states import ConditionName, DesiredState, ErrorReason, Operation, Phase
from codehub.domain.workspace import PendingRequest, RecoverSource, RequestKind, Workspace

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
EARLIER = NOW - timedelta(hours=1)
CLAIMED_AT = NOW - timedelta(seconds=10)
LOOKED_AT = NOW - timedelta(seconds=1)

ID = "01ws00000000000000000000ws"
OP = "01op00000000000000000000op"
FRESH_OP = "01op0000000000000000fresh0"
HOME_OP = "01op000000000000000000home"
FOREIGN_OP = "01op00000000000000foreign0"
OLD_ARCHIVE_OP = "01ar0000000000000000000001"
ARCHIVE_OP = "01ar0000000000000000000002"
FRESH_ARCHIVE_OP = "01ar0000000000000000000003"

OLD_KEY = archive_key(ID, OLD_ARCHIVE_OP)
KEY = archive_key(ID, ARCHIVE_OP)
HOME = Generation(HOME_OP, None)

VOLUME = ConditionName.VOLUME_READY
ARCHIVE = ConditionName.ARCHIVE_READY
EXISTS = ConditionName.CONTAINER_EXISTS
READY = ConditionName.CONTAINER_READY
HEALTHY = ConditionName.HEALTHY

UNKNOWN = Unknown("it cannot be checked")


def condition(status: bool, reason: str = "", message: str = "", at: datetime = EARLIER) -> Condition:
    return Condition(status, reason or ("Ready" if status else "NotThere"), message, at)


YES, NO = condition(True), condition(False)


def conditions(
    volume: Condition | bool = False,
    archive: Condition | bool = False,
    exists: Condition | bool = False,
    ready: Condition | bool = False,
    healthy: Condition | bool = True,
) -> Conditions:
    given = {VOLUME: volume, ARCHIVE: archive, EXISTS: exists, READY: ready, HEALTHY: healthy}
    return {
        name: value if isinstance(value, Condition) else (YES if value else NO)
        for name, value in given.items()
    }


_ORDINARY: dict[str, Any] = {
    "id": ID,
    "number": 7,
    "owner_id": "01us00000000000000000000us",
    "name": "home",
    "description": "",
    "image_ref": "code-server",
    "instance_backend": "process",
    "storage_backend": "local-dir",
    "home_store_key": f"users/01us/workspaces/{ID}/home",
    "standby_ttl_seconds": None,
    "archive_ttl_seconds": None,
    "awake_cpu_percent": None,
    "desired_state": DesiredState.RUNNING,
    "deleted_at": None,
    "purged_at": None,
    "grace_waived_at": None,
    "keep_until": None,
    "last_access_at": EARLIER,
    "person_access_at": None,
    "holds_changed_at": None,
    "request": None,
    "conditions": conditions(),
    "observed_at": EARLIER,
    "phase": Phase.PENDING,
    "phase_changed_at": EARLIER,
    "operation": Operation.NONE,
    "op_id": None,
    "op_started_at": None,
    "progress": None,
    "progress_at": None,
    "archive_op_id": None,
    "archive_key": None,
    "upstream": None,
    "error_count": 0,
    "error_reason": None,
    "error_message": None,
    "next_retry_at": None,
    "started_at": None,
    "home_ctx": None,
    "created_at": EARLIER,
    "updated_at": EARLIER,
    "version": 0,
}


def workspace(**given: Any) -> Workspace:
    """Return a workspace. An operation also sets the claim, and DELETED sets deleted_at."""
    fields = _ORDINARY | given
    if fields["operation"] is not Operation.NONE:
        fields = {**fields, "op_id": OP, "op_started_at": CLAIMED_AT, **given}
        if fields["operation"].makes_archive:
            fields = {**fields, "archive_op_id": ARCHIVE_OP, **given}
    if fields["desired_state"] is DesiredState.DELETED:
        fields = {**fields, "deleted_at": EARLIER, **given}
    return _quick(Workspace, fields)


def _quick(cls: type[Workspace], fields: Mapping[str, Any]) -> Workspace:
    """Make a frozen dataclass without its slow constructor.

    The tests make hundreds of thousands.
    """
    made = object.__new__(cls)
    made.__dict__.update(fields)
    return made


def container(
    *,
    exists: bool = True,
    running: bool = True,
    ready: bool = True,
    attempt: str | None = None,
    message: str = "",
) -> ContainerFact:
    upstream = "unix:/run/ide.sock" if ready else None
    return ContainerFact(exists, running, ready, upstream, attempt, message)


READY_CONTAINER = container()
STARTING_CONTAINER = container(ready=False)
EXITED_CONTAINER = container(running=False, ready=False)
ABSENT_CONTAINER = container(exists=False, running=False, ready=False)


def volume(op_id: str | None = HOME_OP, key: str | None = None) -> VolumeFact:
    return VolumeFact(None if op_id is None else Generation(op_id, key))


def archive(archive_op_id: str = ARCHIVE_OP) -> ArchiveFact:
    key = archive_key(ID, archive_op_id)
    return ArchiveFact(ID, archive_op_id, key, "00" * 32, bytes=10, unpacked=20, entries=3)


def job(
    state: JobState, reason: ErrorReason | None = None, message: str = "", progress: Progress | None = None
) -> JobFact:
    return JobFact(state, progress, reason, message)


def observation(
    container: ContainerFact | Unknown | None = None,
    volume: VolumeFact | Unknown | None = None,
    archive: ArchiveFact | Unknown | Skipped | None = SKIPPED,
    *,
    at: datetime = LOOKED_AT,
    job: JobFact | None = None,
    deletion: JobFact | None = None,
    silent_since: datetime | None = None,
    is_first: bool = False,
    job_is_ours: bool = True,
    chosen: ArchiveFact | Unknown | Skipped | None = SKIPPED,
) -> Observation:
    facts = (container, volume, archive, job, deletion)
    return Observation(at, *facts, silent_since, is_first, job_is_ours, chosen)


def context(now: datetime = NOW, **given: Any) -> Context:
    fresh = Context(now, DEFAULT_RULES, FRESH_OP, FRESH_ARCHIVE_OP, jitter=0.0)
    return replace(fresh, **given)


def recover(source: RecoverSource | None = None, archive_op_id: str | None = None) -> PendingRequest:
    return PendingRequest(RequestKind.RECOVER, "someone", source, archive_op_id)


CANCEL = PendingRequest(RequestKind.CANCEL, "someone")
RECOVER = recover()
RECOVER_ARCHIVE = recover(RecoverSource.ARCHIVE, OLD_ARCHIVE_OP)
RECOVER_EMPTY = recover(RecoverSource.EMPTY)
RESTORE_OLD = PendingRequest(RequestKind.RESTORE, "someone", archive_op_id=OLD_ARCHIVE_OP)


def describe(workspace: Workspace, observation: Observation, decision: Decision) -> str:
    """Describe a decision in a few lines, for the message of a failing test."""
    return "\n".join(
        [
            f"workspace: {_differences(workspace)}",
            f"observed:  {observation}",
            f"decision:  {decision.sentence!r} {decision.event} {decision.effect} {decision.desired}",
            f"after:     {_differences(decision.after)}",
        ]
    )


def _differences(workspace: Workspace) -> str:
    known = {str(name): (item.status, item.reason) for name, item in workspace.conditions.items()}
    differences = {
        name: value
        for name, value in workspace.__dict__.items()
        if name != "conditions" and value != _ORDINARY[name]
    }
    return f"{known} {differences}"
