"""Conversion between the model's values and the domain's."""

from datetime import timedelta
from functools import cache

from codehub.domain import effects as domain_effects
from codehub.domain.archive_keys import archive_key, archive_op_id_of
from codehub.domain.attempt_jobs import current_job_id
from codehub.domain.conditions import Condition
from codehub.domain.decision import Decision
from codehub.domain.observation import (
    SKIPPED,
    ArchiveFact,
    ContainerFact,
    JobFact,
    JobState,
    Observation,
    Skipped,
    Unknown,
    VolumeFact,
)
from codehub.domain.observation import Generation as Marker
from codehub.domain.states import DesiredState, Operation, Phase
from codehub.domain.workspace import PendingRequest, RecoverSource, RequestKind, Workspace
from tests.simulation.model.state_parts import (
    Act,
    Arc,
    Fact,
    Generation,
    ObservedJob,
    Op,
    PartialObservation,
    Request,
    Row,
)
from tests.unit.domain import builders
from tests.unit.domain.builders import ARCHIVE, EXISTS, HEALTHY, ID, NOW, READY, VOLUME

LONG_AGO = NOW - timedelta(days=30)
A_MOMENT_AGO = NOW - timedelta(seconds=1)
IN_20_SECONDS = NOW + timedelta(seconds=20)
_CLAIMED = (A_MOMENT_AGO, NOW - timedelta(seconds=200), LONG_AGO)

NOT_OBSERVED = Fact(False, "NotObserved")
NEW_ROW = Row(
    desired=DesiredState.PENDING, deleted=0, purged=False, waived=False, request=None,
    volume=NOT_OBSERVED, archive=NOT_OBSERVED, exists=NOT_OBSERVED, ready=NOT_OBSERVED,
    healthy=Fact(True, "NotObserved"), phase=Phase.PENDING, phase_due=False,
    operation=Operation.NONE, op=None, op_due=0, archive_op=None, archive_key=None,
    errors=0, error=None, retry=None, started=None, home=None,
)  # fmt: skip

_CONDITIONS = {VOLUME: "volume", ARCHIVE: "archive", EXISTS: "exists", READY: "ready", HEALTHY: "healthy"}
_JOB_STATES = {
    "queued": JobState.RUNNING, "half": JobState.RUNNING, "marked": JobState.RUNNING,
    "acted": JobState.RUNNING,
    "done": JobState.SUCCEEDED, "failed": JobState.FAILED, "gone": JobState.GONE,
}  # fmt: skip


def op_name(op: Op | None) -> str | None:
    return None if op is None else f"op{int(op):02}"


def arc_name(arc: Arc | None) -> str | None:
    return None if arc is None else f"ar{int(arc):02}"


def key_name(arc: Arc | None) -> str | None:
    return None if arc is None else archive_key(ID, arc_name(arc) or "")


def op_of(name: str | None) -> Op | None:
    return None if name is None else Op(int(name[2:4]))


def arc_of(name: str | None) -> Arc | None:
    return None if name is None else Arc(int(name[2:4]))


def arc_of_key(key: str | None) -> Arc | None:
    return None if key is None else arc_of(archive_op_id_of(key))


def marker_of(home: Generation | None) -> Marker | None:
    return None if home is None else Marker(op_name(home.op) or "", key_name(home.arc))


def generation_of(marker: Marker | None) -> Generation | None:
    if marker is None:
        return None
    op = op_of(marker.op_id)
    assert op is not None
    return Generation(op, arc_of_key(marker.archive_key))


@cache
def to_workspace(row: Row) -> Workspace:
    operates = row.operation is not Operation.NONE
    request = None
    if row.request is not None:
        source = None if row.request.source is None else RecoverSource(row.request.source)
        request = PendingRequest(RequestKind(row.request.kind), "owner", source, arc_name(row.request.arc))
    return builders.workspace(
        desired_state=row.desired,
        deleted_at=(None, A_MOMENT_AGO, LONG_AGO)[row.deleted],
        purged_at=A_MOMENT_AGO if row.purged else None,
        grace_waived_at=A_MOMENT_AGO if row.waived else None,
        request=request,
        conditions={
            name: Condition(fact.status, fact.reason, "", LONG_AGO)
            for name, field in _CONDITIONS.items()
            for fact in (getattr(row, field),)
        },
        observed_at=LONG_AGO,
        phase=row.phase,
        phase_changed_at=LONG_AGO if row.phase_due else A_MOMENT_AGO,
        operation=row.operation,
        op_id=op_name(row.op),
        op_started_at=_CLAIMED[row.op_due] if operates else None,
        archive_op_id=arc_name(row.archive_op),
        archive_key=key_name(row.archive_key),
        error_count=row.errors,
        error_reason=row.error,
        error_message=None if row.error is None else "why",
        next_retry_at={None: None, "waiting": IN_20_SECONDS, "due": A_MOMENT_AGO}[row.retry],
        started_at={None: None, "recent": A_MOMENT_AGO, "stable": LONG_AGO}[row.started],
        home_ctx=marker_of(row.home),
    )


def from_decision(decision: Decision) -> Row:
    """Return the row after a decision is saved."""
    after = decision.after
    desired = after.desired_state if decision.desired is None else decision.desired
    kept = after.request if not (decision.consume or decision.desired is not None) else None
    facts = {
        field: Fact(after.conditions[name].status, after.conditions[name].reason)
        for name, field in _CONDITIONS.items()
    }
    return Row(
        desired=desired,
        deleted={None: 0, A_MOMENT_AGO: 1, LONG_AGO: 2}[after.deleted_at],
        purged=after.purged_at is not None,
        waived=after.grace_waived_at is not None,
        request=None
        if kept is None
        else Request(kept.kind.value, _value(kept.source), arc_of(kept.archive_op_id)),
        **facts,
        phase=after.phase,
        phase_due=after.phase_changed_at == LONG_AGO,
        operation=after.operation,
        op=op_of(after.op_id),
        op_due=0 if after.op_started_at in (None, NOW) else _CLAIMED.index(after.op_started_at),
        archive_op=arc_of(after.archive_op_id),
        archive_key=arc_of_key(after.archive_key),
        errors=after.error_count,
        error=after.error_reason,
        retry=None if after.next_retry_at is None else ("waiting" if after.next_retry_at > NOW else "due"),
        started=None
        if after.started_at is None
        else ("stable" if after.started_at == LONG_AGO else "recent"),
        home=generation_of(after.home_ctx),
    )


def _value(source: RecoverSource | None) -> str | None:
    return None if source is None else source.value


def to_observation(
    observed: PartialObservation,
    archive: Arc | str | None,
    silent: int,
    first: bool,
    chosen: Arc | str | None = "skipped",
) -> Observation:
    return Observation(
        at=NOW,
        container=_container(observed.container),
        volume=_volume(observed.volume),
        archive=_archive(archive),
        job=_job(observed.job),
        deletion=_job(observed.deletion),
        silent_since=(None, A_MOMENT_AGO, LONG_AGO)[silent],
        is_first=first,
        job_is_ours=observed.ours,
        chosen=_archive(chosen),
    )


def _container(seen: tuple[str, Op | None, int] | str | None) -> ContainerFact | Unknown | None:
    if isinstance(seen, str):
        return builders.UNKNOWN
    if seen is None:
        return builders.ABSENT_CONTAINER
    state, op, attempt = seen
    name = domain_effects.job_id(op_name(op) or "", attempt)
    return builders.container(running=state != "exited", ready=state == "ready", attempt=name)


def _volume(seen: tuple[Generation | None] | str | None) -> VolumeFact | Unknown | None:
    if isinstance(seen, str):
        return builders.UNKNOWN
    return None if seen is None else VolumeFact(marker_of(seen[0]))


def _archive(seen: Arc | str | None) -> ArchiveFact | Unknown | Skipped | None:
    if isinstance(seen, str):
        return SKIPPED if seen == "skipped" else builders.UNKNOWN
    return None if seen is None else builders.archive(arc_name(seen) or "")


def _job(seen: ObservedJob | None) -> JobFact | None:
    return None if seen is None else JobFact(_JOB_STATES[seen.state], None, seen.reason, "")


def to_act(effect: domain_effects.Effect) -> Act:
    """Convert a decided effect to a value of the model."""
    match effect:
        case domain_effects.Provision():
            return Act("provision", home=generation_of(effect.generation))
        case domain_effects.StartContainer():
            op, attempt = _parse(effect.attempt)
            return Act("start", op, attempt, generation_of(effect.generation))
        case domain_effects.DeleteContainer():
            return Act("stop")
        case domain_effects.SetHomeAside():
            return Act("aside", home=generation_of(effect.generation))
        case domain_effects.CancelJob():
            kind = "cancel-delete" if effect.job_id.endswith("-delete") else "cancel"
            return Act(kind, *_parse(effect.job_id))
        case domain_effects.ArchiveHome():
            made = arc_of(effect.archive_op_id)
            return Act("archive", *_parse(effect.job_id), generation_of(effect.generation), made)
        case domain_effects.ArchiveEmpty():
            return Act("empty", *_parse(effect.job_id), None, arc_of(effect.archive_op_id))
        case domain_effects.RestoreHome():
            return Act("restore", *_parse(effect.job_id), None, arc_of_key(effect.archive_key))
        case domain_effects.DeleteVolume():
            return Act("delete", *_parse(effect.job_id), generation_of(effect.generation))


def _parse(name: str) -> tuple[Op | None, int]:
    op, attempt, *_ = name.split("-")
    return op_of(op), int(attempt)


def present_attempt(row: Row) -> tuple[Op | None, int]:
    """Return the op_id and attempt of the current operation's jobs."""
    return _parse(current_job_id(to_workspace(row)))
