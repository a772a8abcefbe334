"""An IDE that hangs during its start is replaced once, and not too early."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from codehub.domain.decision import DEFAULT_RULES, DEFAULT_TIMEOUTS, Context, Decision, TimelineEvent
from codehub.domain.effects import DeleteContainer, StartContainer, job_id
from codehub.domain.error_policy import RetryPolicy
from codehub.domain.observation import Generation
from codehub.domain.plan import plan
from codehub.domain.states import ErrorReason, Operation, Phase
from codehub.domain.workspace import Workspace
from tests.unit.domain.builders import (
    ABSENT_CONTAINER,
    HOME_OP,
    NOW,
    OP,
    READY_CONTAINER,
    STARTING_CONTAINER,
    conditions,
    context,
    observation,
    volume,
    workspace,
)

LIMIT = DEFAULT_TIMEOUTS[Operation.STARTING]
SECOND = timedelta(seconds=1)
HOME = Generation(HOME_OP, None)
OWN, EARLIER_OPERATION = job_id(OP, 0), job_id("an-earlier-one", 0)


def starting(began: datetime, **given: object) -> Workspace:
    return workspace(
        operation=Operation.STARTING,
        op_started_at=began,
        home_ctx=HOME,
        conditions=conditions(True, False, exists=True),
        **given,
    )


def seen(
    item: Workspace,
    now: datetime,
    *,
    attempt: str | None,
    silent_since: datetime | None,
    given: Context | None = None,
) -> Decision:
    shown = observation(
        replace(STARTING_CONTAINER, op_id=attempt), volume(), at=now, silent_since=silent_since
    )
    return plan(item, shown, replace(given or context(), now=now))


def does_nothing(decision: Decision) -> bool:
    return decision.effect is None and decision.event is None


@pytest.mark.parametrize("attempt", [OWN, EARLIER_OPERATION])
def test_a_hung_ide_is_replaced_after_half_of_the_timeout(attempt: str) -> None:
    item = starting(NOW)
    just = seen(item, NOW + LIMIT / 2, attempt=attempt, silent_since=NOW)
    assert does_nothing(just)
    late = seen(item, NOW + LIMIT / 2 + SECOND, attempt=attempt, silent_since=NOW)
    assert not does_nothing(late)


@pytest.mark.parametrize("attempt", [OWN, EARLIER_OPERATION])
def test_the_timeout_of_an_ide_begins_when_it_is_first_observed(attempt: str) -> None:
    """The pull of its image may have taken long, or another leader may have observed it before."""
    item = starting(NOW - LIMIT * 0.9)
    for first_seen in (NOW, None):
        assert does_nothing(seen(item, NOW + SECOND, attempt=attempt, silent_since=first_seen))


def test_an_ide_of_an_earlier_operation_has_half_of_the_timeout_from_the_start_of_this_one() -> None:
    item = starting(NOW)
    long_silent = NOW - timedelta(hours=1)
    assert does_nothing(seen(item, NOW + SECOND, attempt=EARLIER_OPERATION, silent_since=long_silent))


def test_a_hung_ide_of_an_earlier_operation_is_removed_with_one_timeline_entry() -> None:
    now = NOW + LIMIT * 0.6
    first = seen(starting(NOW), now, attempt=EARLIER_OPERATION, silent_since=NOW)
    assert (first.event, first.effect) == (TimelineEvent.REPLACED, DeleteContainer())
    assert first.sentence == "The IDE runs and has not answered for 180 s. Starting it again."
    assert first.after.error_count == 0, "it was ready once: its start did not fail"
    again = seen(first.after, now + LIMIT / 4, attempt=EARLIER_OPERATION, silent_since=NOW)
    assert (again.event, again.effect) == (None, DeleteContainer())
    assert again.after.progress_at == first.after.progress_at, "it must end at some time"


def test_a_start_that_hangs_is_a_failed_attempt_of_the_same_operation() -> None:
    now = NOW + LIMIT * 0.6
    item = starting(NOW)
    hung = seen(item, now, attempt=OWN, silent_since=NOW)
    after = hung.after
    assert (hung.event, hung.effect) == (TimelineEvent.FAILED, None)
    assert (after.operation, after.op_id, after.op_started_at) == (Operation.STARTING, OP, NOW)
    assert (after.error_count, after.error_reason) == (1, ErrorReason.ActionFailed)
    assert "has not answered for 180 s" in (after.error_message or "")
    waits = seen(after, now + SECOND, attempt=OWN, silent_since=NOW)
    assert does_nothing(waits), "the retry has its pause"
    due = now + DEFAULT_RULES.retry.backoff
    removed = seen(after, due, attempt=OWN, silent_since=NOW)
    assert (removed.event, removed.effect) == (None, DeleteContainer())
    gone = plan(removed.after, observation(ABSENT_CONTAINER, volume(), at=due), replace(context(), now=due))
    assert gone.effect == StartContainer(job_id(OP, 1), HOME)


def test_a_slow_ide_that_answers_in_the_end_is_kept() -> None:
    now = NOW + LIMIT * 0.6
    failed = seen(starting(NOW), now, attempt=OWN, silent_since=NOW).after
    answers = observation(replace(READY_CONTAINER, op_id=OWN), volume(), at=now + SECOND)
    done = plan(failed, answers, replace(context(), now=now + SECOND))
    assert (done.event, done.after.phase, done.after.error_count) == (
        TimelineEvent.FINISHED,
        Phase.RUNNING,
        1,
    )


def test_the_second_ide_has_the_whole_timeout_and_is_not_replaced() -> None:
    hung_at = NOW + LIMIT * 0.6
    item = seen(starting(NOW), hung_at, attempt=OWN, silent_since=NOW).after
    second = job_id(OP, 1)
    seen_first = hung_at + timedelta(seconds=5)
    slow = seen(item, hung_at + LIMIT, attempt=second, silent_since=seen_first)
    assert does_nothing(slow)
    late = seen(item, hung_at + LIMIT + SECOND, attempt=second, silent_since=seen_first)
    assert late.sentence == "Timed out: removing the container."


@pytest.mark.parametrize(
    ("count", "retries"), [(1, 3), (2, 3), (0, 1)], ids=["failed once", "failed twice", "no retries"]
)
def test_an_ide_whose_replacement_would_end_in_error_has_the_whole_timeout(count: int, retries: int) -> None:
    rules = replace(DEFAULT_RULES, retry=RetryPolicy(max_retries=retries))
    item = starting(NOW, error_count=count)
    given = replace(context(), rules=rules)
    attempt = job_id(OP, count)
    shown = seen(item, NOW + LIMIT - SECOND, attempt=attempt, silent_since=NOW, given=given)
    assert does_nothing(shown)


def test_an_ide_that_runs_although_its_start_failed_has_its_timeout() -> None:
    """A call that fails may still have started the IDE."""
    item = starting(NOW, error_count=1)
    assert does_nothing(seen(item, NOW + LIMIT / 2, attempt=OWN, silent_since=NOW))


def test_an_unknown_container_is_not_replaced() -> None:
    assert does_nothing(seen(starting(NOW), NOW + LIMIT * 0.9, attempt=None, silent_since=NOW))


@pytest.mark.parametrize("lived", [timedelta(minutes=1), timedelta(hours=1)])
def test_an_ide_that_stops_answering_is_not_reported_as_ended(lived: timedelta) -> None:
    item = workspace(
        started_at=NOW - lived, home_ctx=HOME, phase=Phase.RUNNING,
        conditions=conditions(True, exists=True, ready=True),
    )  # fmt: skip
    silent = NOW - timedelta(seconds=30)
    shown = observation(replace(STARTING_CONTAINER, op_id=EARLIER_OPERATION), volume(), silent_since=silent)
    sentence = plan(item, shown, context()).sentence
    assert "answer" in sentence and "ended" not in sentence and "died" not in sentence
