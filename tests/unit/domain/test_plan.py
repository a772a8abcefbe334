"""Single decisions: claims, effects, requests, timeouts and recoveries."""

from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Any

import pytest

from codehub.domain.decision import TimelineEvent, record_failure
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
from codehub.domain.error_policy import STABLE_AFTER, Failure
from codehub.domain.observation import Generation, JobState, Observation, Progress
from codehub.domain.observed_conditions import MISSING, VANISHED
from codehub.domain.plan import must_observe_archive, plan
from codehub.domain.states import DesiredState, ErrorReason, Operation, Phase
from codehub.domain.workspace import Workspace
from tests.unit.domain import oracle
from tests.unit.domain.builders import (
    ARCHIVE,
    ARCHIVE_OP,
    CANCEL,
    EXITED_CONTAINER,
    HEALTHY,
    HOME,
    KEY,
    NOW,
    OLD_ARCHIVE_OP,
    OLD_KEY,
    OP,
    READY_CONTAINER,
    RECOVER,
    RECOVER_ARCHIVE,
    RECOVER_EMPTY,
    STARTING_CONTAINER,
    UNKNOWN,
    VOLUME,
    archive,
    condition,
    conditions,
    container,
    context,
    job,
    observation,
    volume,
    workspace,
)

O, J = Operation, JobState  # noqa: E741 - tables are read as rows
HOUR = timedelta(hours=1)


def world(
    level: str, *, exists: bool = False, key: str | None = KEY, **given: Any
) -> tuple[Workspace, Observation]:
    """Return a workspace at a level, and an observation that agrees."""
    has_home = level in ("STANDBY", "RUNNING")
    is_stored = level == "ARCHIVED"
    is_ready = level == "RUNNING"
    shown = READY_CONTAINER if is_ready else EXITED_CONTAINER if exists else None
    item = workspace(
        conditions=conditions(has_home, is_stored, exists or is_ready, is_ready),
        home_ctx=HOME if has_home else None,
        archive_key=key if is_stored else None,
        **given,
    )
    return item, observation(shown, volume() if has_home else None)


@pytest.mark.parametrize("level", ["PENDING", "ARCHIVED", "STANDBY", "RUNNING"])
def test_the_claimed_operation_follows_the_table(level: str) -> None:
    for desired, exists in product(DesiredState, (False, True)):
        item, shown = world(level, exists=exists, desired_state=desired)
        decision = plan(item, shown, context())
        there = exists or level == "RUNNING"
        expected = oracle.operation(level, there, level == "ARCHIVED", desired.value)
        assert decision.after.operation == expected
        assert (decision.event is TimelineEvent.CLAIMED) == (expected != "NONE")


STORED = {"conditions": conditions(archive=True), "archive_key": OLD_KEY}
LIVE = {"conditions": conditions(volume=True), "home_ctx": HOME}
COMMITTED = LIVE | {"archive_key": KEY}
GONE = observation(None, volume())
NEXT_EFFECTS: list[tuple[Operation, dict[str, Any], Observation, Effect | None]] = [
    (O.PROVISIONING, {}, observation(), Provision(Generation(OP, None))),
    (O.PROVISIONING, {}, observation(None, volume(None)), Provision(Generation(OP, None))),
    (O.PROVISIONING, {}, observation(None, UNKNOWN), None),
    (O.RESTORING, STORED, observation(), RestoreHome(job_id(OP, 0), OP, OLD_KEY)),
    (O.RESTORING, STORED, observation(job=job(J.RUNNING)), None),
    (O.RESTORING, STORED, observation(None, UNKNOWN), None),
    (O.RESTORING, STORED, observation(None, None, None), None),
    (
        O.RESTORING,
        STORED,
        observation(job=job(J.GONE), job_is_ours=False),
        RestoreHome(job_id(OP, 0), OP, OLD_KEY),
    ),
    (O.STARTING, LIVE, GONE, StartContainer(job_id(OP, 0), HOME)),
    (O.STARTING, LIVE, observation(EXITED_CONTAINER, volume()), StartContainer(job_id(OP, 0), HOME)),
    (O.STARTING, LIVE, observation(STARTING_CONTAINER, volume()), None),
    (O.STARTING, LIVE, observation(UNKNOWN, volume()), None),
    (O.STARTING, LIVE, observation(None, UNKNOWN), None),
    (O.STARTING, LIVE, observation(None, None), None),
    (O.STOPPING, LIVE, observation(READY_CONTAINER, volume()), DeleteContainer()),
    (O.STOPPING, LIVE, observation(EXITED_CONTAINER, volume()), DeleteContainer()),
    (O.DELETING, STORED, observation(EXITED_CONTAINER), DeleteContainer()),
    (O.CREATE_EMPTY_ARCHIVE, {}, observation(archive=None), ArchiveEmpty(job_id(OP, 0), ARCHIVE_OP)),
    (O.CREATE_EMPTY_ARCHIVE, {}, observation(archive=None, job=job(J.RUNNING)), None),
    (O.ARCHIVING, LIVE, observation(None, volume(), None), ArchiveHome(job_id(OP, 0), HOME, ARCHIVE_OP)),
    (O.ARCHIVING, LIVE, observation(UNKNOWN, volume(), None), None),
    (O.ARCHIVING, LIVE, observation(None, UNKNOWN, None), None),
    (O.ARCHIVING, LIVE, observation(None, None, None), None),
    (O.ARCHIVING, LIVE, observation(EXITED_CONTAINER, volume(), None), DeleteContainer()),
    (O.ARCHIVING, LIVE, observation(None, volume(), UNKNOWN, job=job(J.SUCCEEDED)), None),
    (O.ARCHIVING, LIVE, observation(None, volume(), job=job(J.SUCCEEDED)), None),
    (O.ARCHIVING, LIVE, observation(None, volume(), archive(), job=job(J.RUNNING)), None),
    (
        O.ARCHIVING,
        COMMITTED,
        observation(None, volume(), archive()),
        DeleteVolume(deletion_job_id(OP, 0), HOME),
    ),
    (O.ARCHIVING, COMMITTED, observation(None, volume(), archive(), deletion=job(J.RUNNING)), None),
    (O.ARCHIVING, COMMITTED, observation(None, volume(), UNKNOWN), None),
    (O.ARCHIVING, COMMITTED, observation(None, volume(), None), None),
    (O.ARCHIVING, COMMITTED, observation(None, volume(), archive(OLD_ARCHIVE_OP)), None),
    (O.ARCHIVING, COMMITTED, observation(UNKNOWN, volume(), archive()), None),
]


@pytest.mark.parametrize(("operation", "given", "shown", "effect"), NEXT_EFFECTS)
def test_the_next_effect(
    operation: Operation, given: dict[str, Any], shown: Observation, effect: Effect | None
) -> None:
    decision = plan(workspace(operation=operation, **given), shown, context())
    assert decision.effect == effect
    assert (decision.after.operation, decision.event) == (operation, None)


def test_the_archive_is_committed_before_its_volume_is_deleted() -> None:
    shown = observation(None, volume(), archive(), job=job(J.SUCCEEDED))
    decision = plan(workspace(operation=O.ARCHIVING, **LIVE), shown, context())
    assert (decision.after.archive_key, decision.event, decision.archive) == (
        KEY,
        TimelineEvent.ARCHIVED,
        archive(),
    )
    assert decision.effect is None
    assert plan(decision.after, shown, context()).effect == DeleteVolume(deletion_job_id(OP, 0), HOME)


def test_the_timeline_names_what_the_archive_left_out() -> None:
    done = replace(job(J.SUCCEEDED), left_out="left out 1 pipe: it cannot be archived (./p)")
    decision = plan(
        workspace(operation=O.ARCHIVING, **LIVE), observation(None, volume(), archive(), job=done), context()
    )
    assert decision.event is TimelineEvent.ARCHIVED
    assert decision.sentence.endswith(". It left out 1 pipe: it cannot be archived (./p).")


def test_an_archive_that_was_complete_when_the_home_was_lost_is_recorded() -> None:
    gone = {"conditions": conditions(volume=True) | {VOLUME: condition(True, VANISHED)}, "home_ctx": HOME}
    item = workspace(operation=O.ARCHIVING, archive_key=OLD_KEY, **gone)
    lost = plan(item, observation(None, None, archive()), context())
    assert (lost.after.error_reason, lost.archive) == (ErrorReason.DataLost, archive())
    assert lost.after.archive_key == OLD_KEY, "its owner chooses"


def test_a_clock_that_is_set_back_delays_no_operation() -> None:
    item = workspace(operation=O.STARTING, op_started_at=NOW + 9 * HOUR, progress_at=NOW + 9 * HOUR, **LIVE)
    ready = observation(READY_CONTAINER, volume())
    noticed = plan(item, ready, context())
    assert (noticed.after.op_started_at, noticed.after.progress_at, noticed.effect) == (NOW, None, None)
    later = NOW + timedelta(seconds=1)
    finished = plan(noticed.after, replace(ready, at=later), context(later))
    assert finished.event is TimelineEvent.FINISHED


def test_a_clock_that_is_set_back_delays_no_retry_and_no_second_observation() -> None:
    item, shown = world("STANDBY", next_retry_at=NOW + 9 * HOUR, desired_state=DesiredState.RUNNING)
    assert plan(item, shown, context()).after.operation is O.STARTING
    vanished = conditions(archive=True) | {ARCHIVE: condition(True, VANISHED)}
    item = workspace(conditions=vanished, archive_key=OLD_KEY, observed_at=NOW + 9 * HOUR)
    seen = plan(item, observation(archive=None), context()).after
    assert seen.conditions[ARCHIVE].reason == MISSING


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_home_that_changed_since_its_archive_is_archived_by_another_claim(count: int) -> None:
    outdated = replace(job(J.FAILED, None, "it changed"), outdated=True)
    item = workspace(
        operation=O.ARCHIVING, desired_state=DesiredState.ARCHIVED, error_count=count, **COMMITTED
    )
    after = plan(item, observation(None, volume(), archive(), deletion=outdated), context()).after
    assert (after.operation, after.error_count, after.home_ctx) == (Operation.NONE, count + 1, HOME)
    if count == 2:
        assert after.phase is Phase.ERROR, "retries end"
        return
    assert after.next_retry_at is not None
    again = plan(after, observation(None, volume(), archive()), context(after.next_retry_at)).after
    assert again.operation is O.ARCHIVING
    assert again.archive_op_id != item.archive_op_id


@pytest.mark.parametrize("operation", [O.RESTORING, O.CREATE_EMPTY_ARCHIVE, O.ARCHIVING])
@pytest.mark.parametrize("state", [J.FAILED, J.GONE, J.SUCCEEDED])
@pytest.mark.parametrize("reason", [None, *ErrorReason])
def test_a_dead_job_without_a_result_is_a_failure(
    operation: Operation, state: JobState, reason: ErrorReason | None
) -> None:
    given = STORED if operation is O.RESTORING else LIVE if operation is O.ARCHIVING else {}
    item = workspace(operation=operation, **given)
    stored = archive(OLD_ARCHIVE_OP) if operation is O.RESTORING else None
    shown = observation(
        None, volume() if operation is O.ARCHIVING else None, stored, job=job(state, reason, "why")
    )
    after = plan(item, shown, context()).after
    expected = (reason or ErrorReason.ActionFailed) if state is J.FAILED else ErrorReason.ActionFailed
    assert (after.error_reason, after.error_count) == (expected, 1)
    assert after.operation is (Operation.NONE if expected in oracle.TERMINAL else operation)
    assert after.archive_op_id == item.archive_op_id, "reused by the retries of the same claim"


def test_a_retry_waits_for_its_time_and_then_is_another_job() -> None:
    later = NOW + timedelta(seconds=30)
    item = workspace(operation=O.RESTORING, error_count=1, next_retry_at=later, **STORED)
    assert plan(item, observation(), context()).effect is None
    assert plan(item, observation(), context(later)).effect == RestoreHome(job_id(OP, 1), OP, OLD_KEY)


def test_a_claim_waits_for_its_time() -> None:
    later = NOW + timedelta(seconds=30)
    item, shown = world("STANDBY", next_retry_at=later)
    assert plan(item, shown, context()).after.operation is Operation.NONE
    claimed = plan(item, shown, context(later)).after
    assert (claimed.operation, claimed.next_retry_at) == (O.STARTING, None)


def test_progress_is_kept_with_its_time() -> None:
    item = workspace(operation=O.RESTORING, **STORED)
    moving = observation(job=job(J.RUNNING, progress=Progress(5, 10)))
    after = plan(item, moving, context()).after
    assert (after.progress, after.progress_at) == (Progress(5, 10), NOW)
    assert plan(after, moving, context(NOW + HOUR)).effect == CancelJob(job_id(OP, 0)), "no progress since"


@pytest.mark.parametrize("operation", [item for item in Operation if item is not Operation.NONE])
def test_a_timeout_first_stops_the_running_job_or_container(operation: Operation) -> None:
    given = STORED if operation in (O.RESTORING, O.DELETING) else {}
    if operation in (O.ARCHIVING, O.STARTING, O.STOPPING):
        given = LIVE
    item = workspace(operation=operation, op_started_at=NOW - 3 * HOUR, **given)
    home = volume() if given is LIVE else None
    begun = observation(
        STARTING_CONTAINER if operation in (O.STARTING, O.STOPPING, O.DELETING) else None, home, None
    )
    if operation in (O.RESTORING, O.ARCHIVING, O.CREATE_EMPTY_ARCHIVE):
        stopping = plan(item, replace(begun, job=job(J.RUNNING)), context())
        assert stopping.effect == CancelJob(job_id(OP, 0))
        assert stopping.after.operation is operation
    if operation is O.STARTING:
        assert plan(item, begun, context()).effect == DeleteContainer()
        begun = replace(begun, container=None)
    after = plan(item, begun, context()).after
    assert (after.error_reason, after.operation, after.phase) == (
        ErrorReason.Timeout, Operation.NONE, Phase.ERROR
    )  # fmt: skip


@pytest.mark.parametrize("count", [0, 1, 2])
def test_an_ide_that_ends_right_after_its_start_is_a_failure_of_that_attempt(count: int) -> None:
    item = workspace(operation=O.STARTING, error_count=count, **LIVE)
    for attempt in range(3):
        ended = container(running=False, ready=False, attempt=job_id(OP, attempt), message="exit 1")
        decision = plan(item, observation(ended, volume()), context())
        if attempt == count:
            assert decision.after.error_count == count + 1
            assert "exit 1" in (decision.after.error_message or "")
        else:
            assert decision.effect == StartContainer(job_id(OP, count), HOME)


@pytest.mark.parametrize("lived", [timedelta(0), STABLE_AFTER - timedelta(seconds=1), STABLE_AFTER])
@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("desired", DesiredState)
def test_an_early_end_counts_as_a_failure_if_codehub_was_running(
    lived: timedelta, is_first: bool, desired: DesiredState
) -> None:
    item, shown = world("STANDBY", desired_state=desired, started_at=NOW - lived)
    decision = plan(item, replace(shown, is_first=is_first), context())
    if desired is not DesiredState.RUNNING:
        assert decision.after.error_count == 0
        return
    counted = lived < STABLE_AFTER and not is_first
    assert decision.after.error_count == int(counted)
    assert decision.event is (TimelineEvent.FAILED if counted else TimelineEvent.DIED)
    assert decision.after.started_at is None


def test_the_timeline_names_why_an_ide_ended_after_hours() -> None:
    item, shown = world("STANDBY", desired_state=DesiredState.RUNNING, started_at=NOW - timedelta(hours=3))
    ended = container(running=False, ready=False, message="it ran out of memory (2 GiB), exit code -9")
    decision = plan(item, replace(shown, container=ended), context())
    assert decision.event is TimelineEvent.DIED
    assert "ran out of memory (2 GiB)" in decision.sentence


@pytest.mark.parametrize("lived", [STABLE_AFTER - timedelta(seconds=1), STABLE_AFTER])
def test_after_ten_minutes_earlier_failures_no_longer_count(lived: timedelta) -> None:
    item, shown = world(
        "RUNNING", started_at=NOW - lived, error_count=2, error_reason=ErrorReason.ActionFailed
    )
    after = plan(item, shown, context()).after
    assert after.error_count == (0 if lived == STABLE_AFTER else 2)
    assert (after.error_reason is None) == (lived == STABLE_AFTER)


LOST = {"error_reason": ErrorReason.DataLost, "error_count": 1, "error_message": "gone"}


def test_a_recovery_clears_the_error() -> None:
    item, shown = world("STANDBY", request=RECOVER, **LOST)
    decision = plan(item, shown, context())
    after = decision.after
    assert (after.error_reason, after.error_count, after.error_message) == (None, 0, None)
    assert (after.home_ctx, after.archive_key) == (item.home_ctx, item.archive_key)
    assert (decision.event, decision.consume, decision.keep_archives) == (
        TimelineEvent.RECOVERED,
        True,
        False,
    )
    assert after.operation is Operation.NONE


@pytest.mark.parametrize(("request_", "key"), [(RECOVER_ARCHIVE, OLD_KEY), (RECOVER_EMPTY, None)])
@pytest.mark.parametrize("shown", [None, EXITED_CONTAINER])
def test_a_recovery_with_a_choice_forgets_the_lost_home(request_: Any, key: str | None, shown: Any) -> None:
    gone = conditions(
        volume=condition(False, MISSING),
        archive=condition(False, MISSING),
        exists=shown is not None,
        healthy=False,
    )
    item = workspace(conditions=gone, home_ctx=HOME, archive_key=KEY, request=request_, **LOST)
    decision = plan(item, observation(shown, None), context())
    after = decision.after
    assert (after.home_ctx, after.archive_key) == (None, key)
    assert (after.conditions[ARCHIVE].status, after.conditions[ARCHIVE].reason) == (False, "NotObserved")
    assert after.conditions[HEALTHY].status
    assert (decision.keep_archives, decision.consume) == (True, True)
    assert must_observe_archive(replace(after, request=None)) == (key is not None)


@pytest.mark.parametrize("request_", [RECOVER_ARCHIVE, RECOVER_EMPTY])
def test_a_choice_does_not_replace_a_home_that_came_back_or_is_unknown(request_: Any) -> None:
    known = conditions(volume=condition(False, MISSING))
    item = workspace(conditions=known, home_ctx=HOME, archive_key=KEY, request=request_, **LOST)
    back = plan(item, observation(None, volume()), context())
    assert (back.after.home_ctx, back.after.archive_key) == (HOME, KEY)
    assert (back.keep_archives, back.consume) == (False, True)
    blind = plan(item, observation(None, UNKNOWN), context())
    assert (blind.after.home_ctx, blind.consume) == (HOME, False)


def test_a_recovery_that_cannot_set_a_home_aside_ends_with_the_reason() -> None:
    item = workspace(home_ctx=HOME, archive_key=KEY, request=RECOVER_EMPTY, **LOST)
    decision = record_failure(item, Failure(ErrorReason.ActionFailed, "the disk is full"), context())
    assert (decision.event, decision.consume) == (TimelineEvent.FAILED, True)
    assert decision.after == item
    assert "the disk is full" in decision.sentence


@pytest.mark.parametrize("level", ["PENDING", "ARCHIVED", "STANDBY", "RUNNING"])
def test_a_cancel_after_the_end_keeps_the_workspace_at_its_level(level: str) -> None:
    item, shown = world(level, request=CANCEL)
    decision = plan(item, shown, context())
    assert (decision.desired, decision.consume) == (level, True)
    assert decision.after.operation is Operation.NONE


def test_a_cancel_of_a_deleted_workspace_or_in_error_keeps_the_desired_state() -> None:
    for given in ({"desired_state": DesiredState.DELETED}, LOST):
        item, shown = world("STANDBY", request=CANCEL, **given)
        decision = plan(item, shown, context())
        assert (decision.desired, decision.consume) == (None, True)


@pytest.mark.parametrize(
    ("operation", "given", "shown"),
    [
        (O.ARCHIVING, COMMITTED, observation(None, volume(), archive())),
        (O.ARCHIVING, LIVE | {"desired_state": DesiredState.DELETED}, observation(None, volume(), None)),
        (O.STOPPING, LIVE, observation(EXITED_CONTAINER, volume())),
        (O.CREATE_EMPTY_ARCHIVE, {}, observation(archive=None)),
    ],
)
def test_an_operation_that_cannot_be_cancelled_goes_on(
    operation: Operation, given: dict[str, Any], shown: Observation
) -> None:
    item = workspace(operation=operation, request=CANCEL, **given)
    decision = plan(item, shown, context())
    assert (decision.after.operation, decision.consume, decision.desired) == (operation, True, None)


def test_the_cancel_of_a_start_removes_its_container_first() -> None:
    item = workspace(operation=O.STARTING, request=CANCEL, **LIVE)
    first = plan(item, observation(STARTING_CONTAINER, volume()), context())
    assert (first.effect, first.consume) == (DeleteContainer(), False)
    then = plan(first.after, GONE, context())
    assert (then.event, then.desired, then.after.operation) == (
        TimelineEvent.CANCELLED, DesiredState.STANDBY, Operation.NONE
    )  # fmt: skip


@pytest.mark.parametrize("reason", sorted(oracle.TERMINAL))
@pytest.mark.parametrize("has_home", [True, False])
def test_a_deleted_workspace_in_error_only_loses_its_container(reason: ErrorReason, has_home: bool) -> None:
    home = volume() if has_home else None
    item = workspace(
        desired_state=DesiredState.DELETED,
        conditions=conditions(volume=condition(has_home, "Ready" if has_home else MISSING), exists=True),
        home_ctx=HOME,
        error_reason=reason,
        error_count=3,
    )
    stopping = plan(item, observation(EXITED_CONTAINER, home), context())
    assert (stopping.after.operation, stopping.after.phase) == (O.STOPPING, Phase.DELETING)
    shown = observation(EXITED_CONTAINER, home, at=NOW)
    acting = plan(stopping.after, shown, context())
    assert acting.effect == DeleteContainer()
    done = plan(acting.after, replace(shown, container=None), context()).after
    assert (done.operation, done.phase, done.error_reason) == (Operation.NONE, Phase.DELETED, reason)
    rest = plan(done, replace(shown, container=None), context())
    assert (rest.after, rest.effect) == (done, None), "its volume waits for the purge"
    undeleted = replace(done, deleted_at=None, desired_state=DesiredState.STANDBY)
    assert plan(undeleted, replace(shown, container=None), context()).after.phase is Phase.ERROR


def test_a_purged_workspace_is_left_alone() -> None:
    for level, exists in product(("PENDING", "ARCHIVED", "STANDBY", "RUNNING"), (True, False)):
        item, shown = world(level, exists=exists, desired_state=DesiredState.DELETED, purged_at=NOW)
        decision = plan(item, shown, context())
        assert (decision.after.operation, decision.effect) == (Operation.NONE, None)


def test_when_an_observation_includes_the_archive() -> None:
    reasons = ("Ready", VANISHED, MISSING, "Unobservable", "NotObserved", "NoArchive")
    for operation, key, reason, (status, has_home) in product(
        Operation, (None, KEY), reasons, product((True, False), repeat=2)
    ):
        item = workspace(
            operation=operation,
            archive_key=key,
            conditions=conditions(volume=has_home, archive=condition(status, reason)),
        )
        by_operation = operation in (O.ARCHIVING, O.CREATE_EMPTY_ARCHIVE, O.RESTORING)
        unsettled = reason in (VANISHED, "Unobservable", "NotObserved") or not (status or has_home)
        assert must_observe_archive(item) == (by_operation or (key is not None and unsettled))
