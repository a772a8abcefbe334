"""A workspace of another runtime or storage is left alone, in every enumerated state."""

from dataclasses import replace
from itertools import chain, islice

import pytest

from codehub.domain.conditions import holds
from codehub.domain.decision import DEFAULT_RULES, changed_columns
from codehub.domain.judge import judge
from codehub.domain.other_backends import OTHER_BACKEND, Backends, left_alone_message, why_left_alone
from codehub.domain.plan import plan
from codehub.domain.states import ConditionName, Operation
from tests.unit.domain import enumerated_states
from tests.unit.domain.builders import context, describe, observation, workspace

OWN = Backends("process", "local-dir")
EVERY = 23
"""One world in so many: what is seen makes no difference here."""
ELSEWHERE = context(rules=replace(DEFAULT_RULES, backends=Backends("docker", "local-dir")))


def test_a_coordinator_acts_on_workspaces_of_its_own_backends() -> None:
    assert why_left_alone(workspace(), OWN) is None


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (Backends("docker", "local-dir"), "is on the process runtime, but CodeHub now uses docker"),
        (Backends("process", "pvc"), "is on local-dir storage, but CodeHub now uses pvc"),
    ],
)
def test_the_sentence_names_both_backends(other: Backends, name: str) -> None:
    sentence = why_left_alone(workspace(), other)
    assert sentence is not None and name in sentence


def test_no_observation_starts_ends_or_deletes_anything() -> None:
    operations = [item for item in Operation if item is not Operation.NONE]
    everything = chain(
        enumerated_states.without_operation(),
        enumerated_states.with_requests(),
        *(enumerated_states.under_way(operation) for operation in operations),
    )
    for before, seen in islice(everything, 0, None, EVERY):
        decision = plan(before, seen, ELSEWHERE)
        acts = decision.effect is not None or decision.event is not None or decision.changes_request
        assert not acts, describe(before, seen, decision)
        assert set(changed_columns(before, decision.after)) <= {"conditions", "phase", "phase_changed_at"}
        for name in ConditionName:
            assert holds(decision.after.conditions, name) == holds(before.conditions, name)
        assert decision.after.phase is judge(before.conditions, before.deleted_at, before.error_reason, None)
        assert decision.after.conditions[ConditionName.HEALTHY].reason == OTHER_BACKEND
        assert left_alone_message(decision.after) == decision.sentence


def test_the_message_is_set_once_and_cleared_under_the_right_backend() -> None:
    first = plan(workspace(), observation(), ELSEWHERE)
    again = plan(first.after, observation(), ELSEWHERE)
    assert again.after is first.after
    assert left_alone_message(plan(first.after, observation(), context()).after) is None
