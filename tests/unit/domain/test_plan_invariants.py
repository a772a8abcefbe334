"""Every decision, in every enumerated state, keeps the invariants."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from codehub.domain.decision import Decision
from codehub.domain.observation import Observation
from codehub.domain.plan import plan
from codehub.domain.states import Operation
from tests.unit.domain import enumerated_states
from tests.unit.domain.builders import CLAIMED_AT, context, describe
from tests.unit.domain.enumerated_states import World
from tests.unit.domain.invariants import broken_rules

CONTEXT = context()


def check(enumerated: Iterable[World], *, is_idempotent: bool = False) -> None:
    count = 0
    for workspace, observation in enumerated:
        count += 1
        decision = plan(workspace, observation, CONTEXT)
        broken = broken_rules(workspace, observation, decision)
        if broken:
            pytest.fail(f"{', '.join(broken)}\n{describe(workspace, observation, decision)}")
        if is_idempotent and decision.event is None and decision.effect is None:
            check_idempotent(decision, observation)
    assert count > 0


def check_idempotent(decision: Decision, observation: Observation) -> None:
    """Check that the same observation changes no column again, so that an idle pass writes nothing."""
    again = plan(decision.after, observation, CONTEXT)
    if again.after != decision.after or again.effect is not None or again.event is not None:
        pytest.fail(f"It changes again.\n{describe(decision.after, observation, again)}")


def test_without_an_operation() -> None:
    check(enumerated_states.without_operation(), is_idempotent=True)


def test_with_requests_to_restore() -> None:
    check(enumerated_states.with_requests_to_restore())


def test_with_requests() -> None:
    check(enumerated_states.with_requests())


@pytest.mark.parametrize("operation", [item for item in Operation if item is not Operation.NONE])
def test_under_way(operation: Operation) -> None:
    check(enumerated_states.under_way(operation))


@pytest.mark.parametrize("operation", [item for item in Operation if item is not Operation.NONE])
def test_an_observation_older_than_the_claim_neither_starts_nor_ends_anything(operation: Operation) -> None:
    for workspace, observation in enumerated_states.under_way(operation):
        if workspace.op_started_at != CLAIMED_AT or workspace.error_count:
            continue
        claimed_later = replace(workspace, op_started_at=CONTEXT.now)
        decision = plan(claimed_later, observation, CONTEXT)
        after = decision.after
        seen = replace(
            claimed_later,
            conditions=after.conditions,
            observed_at=after.observed_at,
            phase=after.phase,
            phase_changed_at=after.phase_changed_at,
            upstream=after.upstream,
        )
        assert after == seen
        assert (decision.effect, decision.event, decision.desired, decision.consume) == (
            None,
            None,
            None,
            False,
        )
