"""Sentences of the timeline."""

from datetime import timedelta

import pytest

from codehub.domain import allowed_changes, timeline_text
from codehub.domain.states import DesiredState, Operation


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-5, "Started in under 0.1 s."),
        (0.04, "Started in under 0.1 s."),
        (1.64, "Started in 1.6 s."),
        (35.2, "Started in 35 s."),
        (119, "Started in 119 s."),
        (150, "Started in 2 min."),
    ],
)
def test_a_finished_operation_shows_its_duration(seconds: float, expected: str) -> None:
    assert timeline_text.finished(Operation.STARTING, timedelta(seconds=seconds)) == expected


def test_every_operation_and_desired_state_has_a_sentence() -> None:
    operations = set(Operation) - {Operation.NONE}
    assert set(timeline_text.BEGUN) == operations
    assert all(timeline_text.finished(operation, timedelta(0)) for operation in operations)
    assert set(timeline_text.CREATED) == set(allowed_changes.REQUESTABLE_STATES)
    assert set(timeline_text.REQUESTED) == set(DesiredState) - {DesiredState.PENDING}
