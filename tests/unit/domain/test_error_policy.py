"""The error policy: which failures end in ERROR at once, and when others are retried."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise, product

import pytest

from codehub.domain.continue_operation import is_timed_out
from codehub.domain.decision import DEFAULT_TIMEOUTS, TimelineEvent, record_failure
from codehub.domain.error_policy import Failure, RetryPolicy, failure_outcome, is_terminal, retry_delay
from codehub.domain.observation import Generation, Progress
from codehub.domain.plan import plan
from codehub.domain.states import ErrorReason, Operation
from tests.unit.domain import oracle
from tests.unit.domain.builders import (
    ABSENT_CONTAINER,
    EXISTS,
    HOME,
    KEY,
    NOW,
    conditions,
    context,
    observation,
    volume,
    workspace,
)

RETRIED = {ErrorReason.ActionFailed, ErrorReason.Unreachable}
POLICY = RetryPolicy()
GIVEN = [reason for reason in ErrorReason if reason is not ErrorReason.RetryExceeded]
"""RetryExceeded is a verdict, never a failure's own reason."""


@pytest.mark.parametrize("reason", GIVEN)
def test_the_outcome_of_one_more_failure(reason: ErrorReason) -> None:
    for max_retries, count in product((1, 3, 5), range(6)):
        policy = replace(POLICY, max_retries=max_retries)
        outcome = failure_outcome(Failure(reason, "words"), count, policy, NOW, 0.0)
        assert outcome.count == count + 1
        assert outcome.message.startswith("words")
        assert outcome.terminal == is_terminal(outcome.reason) == (outcome.next_retry_at is None)
        if reason not in RETRIED:
            assert outcome.reason is reason
        elif count + 1 >= max_retries:
            assert outcome.reason is ErrorReason.RetryExceeded
        else:
            assert outcome.reason is reason
            assert outcome.next_retry_at is not None
            assert outcome.next_retry_at > NOW


def test_the_defaults_are_those_of_the_specification() -> None:
    assert (POLICY.max_retries, POLICY.backoff) == (3, timedelta(seconds=30))
    seconds = {operation.value: limit.total_seconds() for operation, limit in DEFAULT_TIMEOUTS.items()}
    assert seconds == {
        "PROVISIONING": 300, "CREATE_EMPTY_ARCHIVE": 300, "STARTING": 300, "STOPPING": 300,
        "DELETING": 600, "ARCHIVING": 1800, "RESTORING": 1800,
    }  # fmt: skip


def test_retries_back_off_exponentially_and_the_first_comes_sooner() -> None:
    delays = [retry_delay(count, POLICY, 0.0) for count in range(1, 7)]
    assert delays[0] < POLICY.backoff
    assert delays[1] == POLICY.backoff
    assert all(later == 2 * earlier for earlier, later in pairwise(delays[1:]))


def test_jitter_only_adds_and_stays_below_the_next_step() -> None:
    for count, jitter in product(range(1, 6), (0.0, 0.25, 0.5, 0.999)):
        delay = retry_delay(count, POLICY, jitter)
        assert retry_delay(count, POLICY, 0.0) <= delay < retry_delay(count + 1, POLICY, 0.0)


@pytest.mark.parametrize("reason", GIVEN)
def test_a_failure_keeps_the_claim_or_ends_it_in_one_step(reason: ErrorReason) -> None:
    for count, operation in product(range(3), Operation):
        item = workspace(operation=operation, error_count=count, home_ctx=HOME, started_at=NOW)
        decision = record_failure(item, Failure(reason, "What to do."), context())
        after = decision.after
        terminal = reason not in RETRIED or count == 2
        assert (after.error_reason in oracle.TERMINAL) == terminal
        assert after.error_count == count + 1
        assert decision.event is (TimelineEvent.ERROR if terminal else TimelineEvent.FAILED)
        assert after.operation is (Operation.NONE if terminal else operation)
        assert (after.op_id, after.op_started_at) == (
            (None, None) if terminal else (item.op_id, item.op_started_at)
        )
        assert after.archive_op_id == item.archive_op_id, "kept for GC's protection"
        assert after.home_ctx == HOME
        assert (after.next_retry_at is None) == terminal
        message = after.error_message or ""
        assert "What to do." in message
        assert "2026-03-01 12:00:00 UTC" in message
        assert (operation.value in message) == (operation is not Operation.NONE)


@pytest.mark.parametrize("first", sorted(oracle.TERMINAL))
def test_the_first_cause_of_an_error_stays_recorded(first: ErrorReason) -> None:
    for then in GIVEN:
        item = workspace(
            operation=Operation.STOPPING,
            error_reason=first,
            error_count=2,
            error_message="first",
            deleted_at=NOW,
        )
        after = record_failure(item, Failure(then, "then"), context()).after
        assert (after.error_reason, after.error_count, after.error_message) == (first, 2, "first")
        assert after.operation is Operation.NONE
        assert after.next_retry_at == NOW + POLICY.backoff


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("operation", Operation)
def test_a_home_that_codehub_removed_does_not_count_as_lost(
    there: bool, key: str | None, operation: Operation
) -> None:
    item = workspace(operation=operation, home_ctx=HOME, archive_key=key, conditions=conditions(there, True))
    after = record_failure(item, Failure(ErrorReason.Timeout, ""), context()).after
    removed = operation is Operation.ARCHIVING and key == KEY and not there
    makes = operation in (Operation.PROVISIONING, Operation.RESTORING)
    if there and makes:
        restored = key if operation is Operation.RESTORING else None
        assert after.home_ctx == Generation(item.op_id or "", restored), "what it has made is the home"
    else:
        assert after.home_ctx == (None if removed else HOME)


@pytest.mark.parametrize("operation", DEFAULT_TIMEOUTS)
def test_progress_restarts_the_timeout(operation: Operation) -> None:
    limit, second = DEFAULT_TIMEOUTS[operation], timedelta(seconds=1)
    begun = workspace(operation=operation, op_started_at=NOW)
    assert not is_timed_out(begun, context(NOW + limit))
    assert is_timed_out(begun, context(NOW + limit + second))
    moved = replace(begun, progress=Progress(1), progress_at=NOW + limit)
    assert not is_timed_out(moved, context(NOW + 2 * limit))
    assert is_timed_out(moved, context(NOW + 2 * limit + second))


@pytest.mark.parametrize("pulled", [True, False])
def test_pulled_layers_restart_the_timeout_of_a_start(pulled: bool) -> None:
    began = NOW - timedelta(hours=1)
    item = workspace(
        operation=Operation.STARTING, op_started_at=began, home_ctx=HOME, conditions=conditions(True, False)
    )
    seen = replace(ABSENT_CONTAINER, message="pulling", progress=Progress(1 << 20) if pulled else None)
    decision = plan(item, observation(seen, volume()), context())
    assert (decision.event is TimelineEvent.ERROR) is not pulled
    assert (decision.after.progress == Progress(1 << 20)) is pulled
    assert decision.after.conditions[EXISTS].message == "pulling"
