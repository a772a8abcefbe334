"""Level and phase, over every combination of conditions, deletion and error."""

from itertools import product

import pytest

from codehub.domain.conditions import initial_conditions
from codehub.domain.error_policy import is_terminal
from codehub.domain.judge import judge, level_of
from codehub.domain.plan import next_operation
from codehub.domain.states import DesiredState, ErrorReason, Level, Operation, Phase
from tests.unit.domain import oracle
from tests.unit.domain.builders import EARLIER, HEALTHY, HOME, KEY, NOW, conditions, workspace

BOTH = (False, True)
LEVELS = list(Level)
"""Lowest first."""
EVERY = [conditions(*statuses) for statuses in product(BOTH, repeat=5)]


@pytest.mark.parametrize("seen", EVERY, ids=lambda seen: "".join("NY"[item.status] for item in seen.values()))
def test_level_and_phase_follow_the_table(seen: dict) -> None:
    assert level_of(seen) == oracle.level(seen)
    for deleted, error in product(BOTH, (None, *ErrorReason)):
        for waived in BOTH if deleted else (False,):
            found = judge(seen, EARLIER if deleted else None, error, EARLIER if waived else None)
            assert found == oracle.phase(seen, deleted, error, waived)


def test_every_level_is_a_phase_and_a_desired_state() -> None:
    assert {level.value for level in Level} < {phase.value for phase in Phase}
    assert {level.value for level in Level} < {desired.value for desired in DesiredState}


def test_terminal_reasons_are_those_of_the_table() -> None:
    assert {reason for reason in ErrorReason if is_terminal(reason)} == oracle.TERMINAL
    assert not is_terminal(None)


def test_before_the_first_observation_only_health_holds() -> None:
    seen = initial_conditions(NOW)
    assert {name for name, item in seen.items() if item.status} == {HEALTHY}
    assert {item.reason for item in seen.values()} == {"NotObserved"}
    assert judge(seen, None, None, None) is Phase.PENDING


@pytest.mark.parametrize("desired", DesiredState)
@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("home", [None, HOME])
def test_the_next_operation_follows_the_table(desired: DesiredState, key: str | None, home: object) -> None:
    for seen in EVERY:
        level = oracle.level(seen)
        exists = [item.status for item in seen.values()][2]
        item = workspace(conditions=seen, desired_state=desired, archive_key=key, home_ctx=home)
        assert next_operation(item) == oracle.operation(level, exists, key is not None, desired.value)


@pytest.mark.parametrize("desired", [state for state in DesiredState if state is not DesiredState.DELETED])
def test_an_operation_never_leads_away_from_the_desired_state(desired: DesiredState) -> None:
    """Operations go down from a higher level and up from a lower one."""
    down = {Operation.STOPPING, Operation.ARCHIVING}
    for seen, key in product(EVERY, (None, KEY)):
        item = workspace(conditions=seen, desired_state=desired, archive_key=key)
        here, there = LEVELS.index(level_of(seen)), LEVELS.index(Level(desired.value))
        operation = next_operation(item)
        stray = [condition.status for condition in seen.values()][2] and here < LEVELS.index(Level.STANDBY)
        if desired is DesiredState.PENDING:
            assert operation is Operation.NONE
        elif here > there or stray:
            assert operation in down
        elif here < there:
            assert operation not in down
        elif operation is not Operation.NONE:
            assert (operation, desired) == (Operation.STOPPING, DesiredState.STANDBY)
