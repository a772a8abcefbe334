"""Each condition after an observation, for every earlier value and every observed fact."""

from dataclasses import replace
from datetime import timedelta
from itertools import product

import pytest

from codehub.domain.conditions import Condition, updated_condition
from codehub.domain.observation import ContainerFact, Unknown
from codehub.domain.observed_conditions import MISSING, SILENCE, VANISHED, apply_observation, silent_since
from codehub.domain.states import ConditionName, Operation
from tests.unit.domain.builders import (
    ABSENT_CONTAINER,
    ARCHIVE,
    ARCHIVE_OP,
    EARLIER,
    EXISTS,
    EXITED_CONTAINER,
    FOREIGN_OP,
    HEALTHY,
    HOME,
    HOME_OP,
    KEY,
    LOOKED_AT,
    NOW,
    OLD_ARCHIVE_OP,
    OLD_KEY,
    OP,
    READY,
    READY_CONTAINER,
    STARTING_CONTAINER,
    UNKNOWN,
    VOLUME,
    archive,
    condition,
    conditions,
    observation,
    volume,
    workspace,
)

BEFORE = [
    condition(status, reason) for status, reason in product((True, False), ("Ready", VANISHED, MISSING))
]
NOT_OURS = (None, volume(None), volume(FOREIGN_OP))


def seen(item: object, shown: object, name: ConditionName) -> Condition:
    return apply_observation(item, shown, NOW).conditions[name]  # type: ignore[arg-type]


@pytest.mark.parametrize("before", BEFORE, ids=str)
@pytest.mark.parametrize("operation", Operation)
def test_an_unknown_resource_keeps_its_condition(before: Condition, operation: Operation) -> None:
    known = conditions(before, before, before, before)
    item = workspace(conditions=known, operation=operation, home_ctx=HOME, archive_key=KEY)
    after = apply_observation(item, observation(UNKNOWN, UNKNOWN, UNKNOWN), NOW).conditions
    for name in (VOLUME, ARCHIVE, EXISTS, READY):
        assert after[name].status == before.status
        assert (after[name].reason, after[name].message) == ("Unobservable", UNKNOWN.message)
        assert after[name].last_transition_time == before.last_transition_time


@pytest.mark.parametrize("operation", Operation)
@pytest.mark.parametrize("before", BEFORE, ids=str)
def test_a_volume_with_the_expected_marker_is_ready(before: Condition, operation: Operation) -> None:
    makes = operation in (Operation.PROVISIONING, Operation.RESTORING)
    home = None if makes else HOME
    item = workspace(conditions=conditions(before), operation=operation, home_ctx=home)
    expected = OP if makes else HOME_OP
    for op_id in (OP, HOME_OP, FOREIGN_OP):
        status = seen(item, observation(None, volume(op_id)), VOLUME).status
        still = before.status and before.reason != VANISHED and not makes
        assert status == (op_id == expected or still)


@pytest.mark.parametrize("shown", NOT_OURS, ids=str)
def test_a_home_is_missing_after_two_observations(shown: object) -> None:
    item = workspace(conditions=conditions(volume=True), home_ctx=HOME)
    once = apply_observation(item, observation(None, shown), NOW)  # type: ignore[arg-type]
    assert (once.conditions[VOLUME].status, once.conditions[VOLUME].reason) == (True, VANISHED)
    same_look = apply_observation(once, observation(None, shown), NOW)  # type: ignore[arg-type]
    assert same_look == once, "the same look again is not a second one"
    fresh = observation(None, shown, at=LOOKED_AT + timedelta(seconds=1))  # type: ignore[arg-type]
    twice = apply_observation(once, fresh, NOW)
    assert (twice.conditions[VOLUME].status, twice.conditions[VOLUME].reason) == (False, MISSING)
    assert apply_observation(twice, replace(fresh, at=NOW), NOW) == twice


def test_an_unknown_between_the_two_observations_starts_over() -> None:
    item = workspace(conditions=conditions(volume=condition(True, VANISHED)), home_ctx=HOME)
    blind = apply_observation(item, observation(None, UNKNOWN), NOW)
    again = apply_observation(blind, observation(None, None, at=NOW), NOW)
    assert (again.conditions[VOLUME].status, again.conditions[VOLUME].reason) == (True, VANISHED)


def test_a_home_that_comes_back_is_ready_at_once() -> None:
    for before in BEFORE:
        item = workspace(conditions=conditions(before), home_ctx=HOME)
        assert seen(item, observation(None, volume()), VOLUME).status


@pytest.mark.parametrize("operation", Operation)
@pytest.mark.parametrize("key", [None, OLD_KEY, KEY])
def test_a_volume_may_be_missing_after_a_committed_archive(operation: Operation, key: str | None) -> None:
    item = workspace(
        conditions=conditions(volume=True),
        operation=operation,
        home_ctx=HOME,
        archive_key=key,
        archive_op_id=ARCHIVE_OP,
    )
    removed = operation is Operation.ARCHIVING and key == KEY
    assert seen(item, observation(None, None), VOLUME).status != removed


@pytest.mark.parametrize(
    ("shown", "reason"),
    [(None, "NoVolume"), (volume(None), "Unfinished"), (volume(FOREIGN_OP), "ForeignGeneration")],
)
def test_an_unexpected_volume_is_not_ready(shown: object, reason: str) -> None:
    for before in (True, False):
        item = workspace(conditions=conditions(volume=before))
        after = seen(item, observation(None, shown), VOLUME)
        assert (after.status, after.reason) == (False, reason)


@pytest.mark.parametrize("operation", Operation)
def test_the_archive_condition_is_about_the_archive_key(operation: Operation) -> None:
    for before, key in product(BEFORE, (None, OLD_KEY, KEY)):
        item = workspace(
            conditions=conditions(archive=before),
            archive_key=key,
            operation=operation,
            archive_op_id=ARCHIVE_OP,
        )
        assert seen(item, observation(None, None), ARCHIVE) == before, "not observed"
        for archive_op_id, its_key in ((OLD_ARCHIVE_OP, OLD_KEY), (ARCHIVE_OP, KEY)):
            after = seen(item, observation(None, None, archive(archive_op_id)), ARCHIVE)
            assert after.status == (key == its_key or before.status)
        after = seen(item, observation(None, None, None), ARCHIVE)
        if operation.makes_archive and key != KEY:
            assert after == before, "the look was for the archive under way"
        elif key is None:
            assert not after.status
        elif before.reason == VANISHED:
            assert (after.status, after.reason) == (False, MISSING)
        elif before.reason != MISSING:
            assert (after.status, after.reason) == (before.status, VANISHED)


def test_an_archive_that_was_never_seen_is_missing_after_two_observations() -> None:
    item = workspace(conditions=conditions(archive=condition(False, "NotObserved")), archive_key=KEY)
    once = apply_observation(item, observation(None, None, None), NOW)
    assert once.conditions[ARCHIVE].reason == VANISHED
    assert apply_observation(once, observation(None, None, None), NOW) == once
    twice = apply_observation(once, observation(None, None, None, at=NOW), NOW)
    assert twice.conditions[ARCHIVE].reason == MISSING


CONTAINERS = (None, ABSENT_CONTAINER, EXITED_CONTAINER, STARTING_CONTAINER, READY_CONTAINER)


@pytest.mark.parametrize("shown", CONTAINERS, ids=str)
@pytest.mark.parametrize("was_ready", [True, False])
@pytest.mark.parametrize("silence", [None, timedelta(0), SILENCE - timedelta(seconds=1), SILENCE])
def test_the_container(shown: ContainerFact | None, was_ready: bool, silence: timedelta | None) -> None:
    item = workspace(conditions=conditions(volume=True, exists=was_ready, ready=was_ready), home_ctx=HOME)
    since = None if silence is None else NOW - silence
    after = apply_observation(item, observation(shown, volume(), silent_since=since), NOW)
    exists, ready = after.conditions[EXISTS].status, after.conditions[READY].status
    assert exists == (shown in (EXITED_CONTAINER, STARTING_CONTAINER, READY_CONTAINER))
    if shown is STARTING_CONTAINER:
        assert ready == (was_ready and silence != SILENCE), "30 seconds without an answer, and not before"
    else:
        assert ready == (shown is READY_CONTAINER), "gone is not ready, at once"


@pytest.mark.parametrize("shown", [*CONTAINERS, UNKNOWN], ids=str)
@pytest.mark.parametrize("was_ready", [True, False])
def test_the_upstream_is_known_exactly_while_the_ide_is_ready(
    shown: ContainerFact | Unknown | None, was_ready: bool
) -> None:
    old = "unix:/old.sock" if was_ready else None
    item = workspace(conditions=conditions(True, False, was_ready, was_ready), home_ctx=HOME, upstream=old)
    after = apply_observation(item, observation(shown, volume()), NOW)
    if isinstance(shown, Unknown):
        assert after.upstream == old
    elif shown is READY_CONTAINER:
        assert after.upstream == READY_CONTAINER.upstream
    else:
        assert after.upstream is None


@pytest.mark.parametrize("operation", Operation)
def test_a_container_without_its_volume_is_unhealthy(operation: Operation) -> None:
    for was_healthy, home, container, gone in product(
        (True, False), (None, HOME), (None, EXITED_CONTAINER), (True, False)
    ):
        known = conditions(volume=condition(not gone, MISSING if gone else "Ready"), healthy=was_healthy)
        item = workspace(conditions=known, home_ctx=home, operation=operation)
        own = OP if operation in (Operation.PROVISIONING, Operation.RESTORING) else HOME_OP
        after = seen(item, observation(container, None if gone else volume(own)), HEALTHY)
        violated = container is not None and gone and home is not None
        begins_here = operation is Operation.NONE or not was_healthy
        assert after.status == (not (violated and begins_here))


def test_an_observation_without_news_changes_nothing() -> None:
    item = workspace(home_ctx=HOME, archive_key=KEY)
    first = apply_observation(item, observation(READY_CONTAINER, volume(), archive()), NOW)
    assert first.observed_at == LOOKED_AT
    later = NOW + timedelta(hours=1)
    assert (
        apply_observation(first, observation(READY_CONTAINER, volume(), archive(), at=later), later) == first
    )


def test_a_transition_time_changes_only_with_the_status() -> None:
    old = conditions(volume=condition(True, "Ready", "", EARLIER))
    assert updated_condition(old, VOLUME, True, "Ready", "", NOW) is old[VOLUME]
    assert updated_condition(old, VOLUME, True, "Other", "words", NOW) == Condition(
        True, "Other", "words", EARLIER
    )
    assert updated_condition(old, VOLUME, False, "Other", "", NOW) == Condition(False, "Other", "", NOW)


def test_silence_begins_with_the_first_observation_without_an_answer() -> None:
    assert silent_since(None, True, NOW) is None
    assert silent_since(EARLIER, True, NOW) is None
    assert silent_since(None, False, NOW) == NOW
    assert silent_since(EARLIER, False, NOW) == EARLIER
