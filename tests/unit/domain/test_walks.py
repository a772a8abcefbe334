"""Every transition from a level to a desired state, with every single fault at every step."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from functools import cache
from itertools import product

import pytest

from codehub.domain.allowed_changes import check_undelete, home_is_lost
from codehub.domain.effects import RestoreHome
from codehub.domain.observation import Generation, Observation, Skipped
from codehub.domain.states import DesiredState, ErrorReason, Level, Operation, Phase
from codehub.domain.workspace import RecoverSource
from tests.unit.domain.builders import CANCEL, RECOVER, UNKNOWN, recover
from tests.unit.domain.tiny_world import Container, Home, Walk

O = Operation  # noqa: E741 - the table is read, not the letter
TRANSITIONS = {
    ("PENDING", "ARCHIVED"): [O.CREATE_EMPTY_ARCHIVE],
    ("PENDING", "STANDBY"): [O.PROVISIONING],
    ("PENDING", "RUNNING"): [O.PROVISIONING, O.STARTING],
    ("PENDING", "DELETED"): [],
    ("ARCHIVED", "ARCHIVED"): [],
    ("ARCHIVED", "STANDBY"): [O.RESTORING],
    ("ARCHIVED", "RUNNING"): [O.RESTORING, O.STARTING],
    ("ARCHIVED", "DELETED"): [],
    ("STANDBY", "ARCHIVED"): [O.ARCHIVING],
    ("STANDBY", "STANDBY"): [],
    ("STANDBY", "RUNNING"): [O.STARTING],
    ("STANDBY", "DELETED"): [O.ARCHIVING],
    ("RUNNING", "ARCHIVED"): [O.STOPPING, O.ARCHIVING],
    ("RUNNING", "STANDBY"): [O.STOPPING],
    ("RUNNING", "RUNNING"): [],
    ("RUNNING", "DELETED"): [O.STOPPING, O.ARCHIVING],
}
LEVELS = list(Level)
"""Lowest first."""
Fault = Callable[[Walk], None]


@cache
def _at(level: Level) -> Walk:
    walk = Walk()
    if level is Level.PENDING:
        return walk
    walk.set_desired_state(DesiredState.RUNNING)
    walk.run_until_idle()
    walk.set_desired_state(DesiredState(level.value))
    walk.run_until_idle()
    walk.operations.clear()
    walk.sentences.clear()
    return walk


def at(start: str) -> Walk:
    return deepcopy(_at(Level(start)))


def watch_for_loss(walk: Walk) -> Callable[[], None]:
    def watch() -> None:
        sentences = "\n".join(walk.sentences)
        assert walk.world.has_complete_copy(), f"No complete copy is left:\n{sentences}"
        if walk.workspace.phase is Phase.ERROR:
            assert walk.workspace.operation is Operation.NONE

    return watch


def length(transition: tuple[str, str]) -> int:
    """Return the number of steps of the transition without a fault."""
    walk = at(transition[0])
    walk.set_desired_state(DesiredState(transition[1]))
    walk.run_until_idle()
    return len(walk.sentences)


def walk_with_fault(transition: tuple[str, str], position: int, fault: Fault) -> Walk:
    """Walk a transition up to a step, and inject a fault there."""
    walk = at(transition[0])
    walk.set_desired_state(DesiredState(transition[1]))
    watch = watch_for_loss(walk)
    for _ in range(position):
        walk.step()
        watch()
    fault(walk)
    return walk


@pytest.mark.parametrize("transition", TRANSITIONS, ids="-".join)
def test_every_transition_runs_its_operations_in_order(transition: tuple[str, str]) -> None:
    walk = at(transition[0])
    walk.set_desired_state(DesiredState(transition[1]))
    walk.run_until_idle(watch_for_loss(walk))
    assert walk.operations == TRANSITIONS[transition]
    assert walk.workspace.phase == transition[1]
    assert walk.workspace.error_count == 0
    assert (walk.world.container is not None) == (transition[1] == "RUNNING")
    assert (walk.world.home is not None) == (transition[1] in ("STANDBY", "RUNNING"))
    assert (walk.workspace.upstream is not None) == (transition[1] == "RUNNING")


def test_an_idle_workspace_is_left_alone() -> None:
    for transition in TRANSITIONS:
        walk = at(transition[0])
        walk.set_desired_state(DesiredState(transition[1]))
        walk.run_until_idle()
        rested = walk.workspace
        for _ in range(3):
            assert walk.step().effect is None
            assert walk.workspace == rested


def lose_the_effect(walk: Walk) -> None:
    walk.drop_effect = True


def restart(walk: Walk) -> None:
    walk.restarted = True


def kill_the_job(walk: Walk) -> None:
    walk.world.kill_all()


def kill_everything(walk: Walk) -> None:
    walk.world.kill_all()
    walk.restarted = True


def see_no_container(walk: Walk) -> None:
    walk.distort = lambda observation: replace(observation, container=UNKNOWN)


def see_no_volume(walk: Walk) -> None:
    walk.distort = lambda observation: replace(observation, volume=UNKNOWN)


def see_no_archive(walk: Walk) -> None:
    def blind(observation: Observation) -> Observation:
        return (
            observation if isinstance(observation.archive, Skipped) else replace(observation, archive=UNKNOWN)
        )

    walk.distort = blind


def see_nothing(walk: Walk) -> None:
    walk.distort = lambda observation: replace(
        observation, container=UNKNOWN, volume=UNKNOWN, archive=UNKNOWN
    )


def miss_the_volume_once(walk: Walk) -> None:
    walk.distort = lambda observation: replace(observation, volume=None)


def see_the_past(walk: Walk) -> None:
    past = replace(walk.observe(), at=walk.workspace.op_started_at or walk.now)
    walk.distort = lambda observation: replace(past, at=past.at - timedelta(seconds=1))


FAULTS = (
    lose_the_effect,
    restart,
    kill_the_job,
    kill_everything,
    see_no_container,
    see_no_volume,
    see_no_archive,
    see_nothing,
    see_the_past,
)


@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_at_any_step_is_overcome(fault: Fault) -> None:
    for transition in TRANSITIONS:
        for position in range(length(transition)):
            walk = walk_with_fault(transition, position, fault)
            walk.run_until_idle(watch_for_loss(walk))
            assert walk.workspace.phase == transition[1], "\n".join(walk.sentences)
            assert walk.workspace.error_reason is None or transition[1] == "RUNNING"


def test_a_volume_missed_once_is_not_lost() -> None:
    """Except for the observation in which the deletion after an archive could have removed it."""
    for transition in TRANSITIONS:
        for position in range(length(transition)):
            walk = walk_with_fault(transition, position, miss_the_volume_once)
            walk.run_until_idle(watch_for_loss(walk))
            assert walk.workspace.error_reason is not ErrorReason.DataLost


def test_a_cancel_at_any_step_keeps_the_workspace_at_its_level() -> None:
    for transition in TRANSITIONS:
        for position in range(length(transition)):
            walk = walk_with_fault(transition, position, lambda walk: walk.request(CANCEL))
            before = walk.workspace
            walk.run_until_idle(watch_for_loss(walk))
            after = walk.workspace
            assert after.request is None
            assert (after.error_count, after.error_reason) == (0, None)
            if transition[1] == "DELETED":
                assert after.phase is Phase.DELETED
                continue
            assert after.phase == after.desired_state
            low, high = sorted(LEVELS.index(Level(level)) for level in transition)
            assert low <= LEVELS.index(Level(after.phase.value)) <= high
            if before.operation is Operation.ARCHIVING and before.archive_key is None:
                assert after.phase is Phase.STANDBY


def test_a_cancelled_transition_can_be_repeated() -> None:
    for transition in TRANSITIONS:
        for position in range(length(transition)):
            walk = walk_with_fault(transition, position, lambda walk: walk.request(CANCEL))
            walk.run_until_idle(watch_for_loss(walk))
            walk.set_desired_state(DesiredState(transition[1]))
            walk.run_until_idle(watch_for_loss(walk))
            assert walk.workspace.phase == transition[1]


def test_a_timeout_at_any_step_loses_nothing_and_can_be_recovered() -> None:
    timed_out = 0
    for transition, and_kill in product(TRANSITIONS, (False, True)):
        for position in range(length(transition)):
            walk = walk_with_fault(
                transition, position, lambda walk: setattr(walk, "now", walk.now + timedelta(hours=3))
            )
            if and_kill:
                walk.world.kill_all()
            walk.run_until_idle(watch_for_loss(walk))
            if walk.workspace.error_reason is None:
                assert walk.workspace.phase == transition[1]
                continue
            assert walk.workspace.error_reason in (ErrorReason.Timeout, ErrorReason.ActionFailed)
            timed_out += 1
            if transition[1] == "DELETED":
                assert walk.world.container is None
                continue
            walk.request(RECOVER)
            walk.run_until_idle(watch_for_loss(walk))
            assert walk.workspace.phase == transition[1], "\n".join(walk.sentences)
    assert timed_out > 0


def lose_the_home(walk: Walk) -> None:
    walk.world.home = None


def test_a_home_lost_at_any_step_is_reported_and_never_replaced_without_a_request() -> None:
    lost = 0
    for transition in TRANSITIONS:
        for position in range(length(transition)):
            walk = walk_with_fault(transition, position, lambda walk: None)
            expected = walk.workspace.home_ctx
            removed = walk.workspace.operation is Operation.ARCHIVING and len(walk.world.archives) > 0
            if walk.world.home is None or expected is None or removed:
                continue
            lose_the_home(walk)
            done = len(walk.operations)
            walk.run_until_idle()
            assert walk.workspace.error_reason in (ErrorReason.DataLost, ErrorReason.ContainerWithoutVolume)
            assert not {Operation.PROVISIONING, Operation.RESTORING} & set(walk.operations[done:])
            assert walk.world.home is None
            assert walk.workspace.home_ctx == expected
            lost += 1
    assert lost > 20


@pytest.mark.parametrize("desired", [DesiredState.STANDBY, DesiredState.RUNNING])
def test_a_lost_archive_is_reported_after_two_observations_and_never_replaced_without_a_request(
    desired: DesiredState,
) -> None:
    walk = at("ARCHIVED")
    walk.world.archives.clear()
    walk.set_desired_state(desired)
    walk.run_until_idle()
    assert walk.workspace.error_reason is ErrorReason.DataLost
    assert home_is_lost(walk.workspace), "so that a recovery needs a choice"
    assert walk.operations == [Operation.RESTORING]
    assert walk.world.home is None


def test_a_restore_is_not_stopped_when_its_archive_goes_missing() -> None:
    walk = at("ARCHIVED")
    walk.set_desired_state(DesiredState.STANDBY)
    while not any(isinstance(job.effect, RestoreHome) for job in walk.world.jobs.values()):
        walk.step()
    without_archive = replace(walk.observe(), archive=None)
    for _ in range(3):
        walk.distort = lambda observation: replace(without_archive, at=observation.at)
        assert walk.step().effect is None
    walk.run_until_idle(watch_for_loss(walk))
    assert walk.workspace.phase is Phase.STANDBY


@pytest.mark.parametrize("desired", [DesiredState.STANDBY, DesiredState.RUNNING])
def test_a_lost_home_comes_back_from_the_archive_that_was_chosen(desired: DesiredState) -> None:
    walk = at("ARCHIVED")
    (chosen,) = walk.world.archives
    version = walk.world.archives[chosen]
    walk.set_desired_state(desired)
    walk.run_until_idle()
    lose_the_home(walk)
    walk.run_until_idle()
    walk.request(recover(RecoverSource.ARCHIVE, chosen))
    walk.run_until_idle()
    assert walk.workspace.phase == desired
    assert walk.world.home is not None
    assert walk.world.home.generation.archive_key == walk.workspace.archive_key
    assert desired is DesiredState.RUNNING or walk.world.home.version == version


@pytest.mark.parametrize("desired", [DesiredState.STANDBY, DesiredState.RUNNING])
def test_a_lost_home_comes_back_empty_when_that_was_chosen(desired: DesiredState) -> None:
    walk = at("ARCHIVED")
    walk.set_desired_state(desired)
    walk.run_until_idle()
    lose_the_home(walk)
    walk.run_until_idle()
    walk.request(recover(RecoverSource.EMPTY))
    walk.run_until_idle()
    assert walk.workspace.phase == desired
    assert walk.workspace.archive_key is None
    assert walk.world.archives, "what is left behind is kept"


@pytest.mark.parametrize("source", RecoverSource)
@pytest.mark.parametrize("desired", [DesiredState.STANDBY, DesiredState.RUNNING])
def test_a_choice_sets_a_foreign_home_aside_and_keeps_it(
    desired: DesiredState, source: RecoverSource
) -> None:
    walk = at("ARCHIVED")
    (stored,) = walk.world.archives
    walk.set_desired_state(desired)
    walk.run_until_idle()
    lose_the_home(walk)
    foreign = walk.world.home = Home(Generation("foreign", None), 7)
    walk.run_until_idle()
    assert walk.workspace.error_reason in (ErrorReason.DataLost, ErrorReason.ContainerWithoutVolume)
    assert walk.world.home is foreign
    walk.request(recover(source, stored if source is RecoverSource.ARCHIVE else None))
    walk.run_until_idle()
    assert walk.workspace.phase == desired
    assert walk.world.aside == [foreign]


def test_a_crash_loop_ends_in_error() -> None:
    walk = at("RUNNING")
    for _ in range(200):
        if walk.workspace.phase is Phase.RUNNING:
            walk.world.container = None
        walk.step()
        if walk.workspace.phase is Phase.ERROR:
            break
    assert walk.workspace.error_reason is ErrorReason.RetryExceeded
    assert walk.world.home is not None


def test_a_container_that_dies_once_is_started_again() -> None:
    walk = at("RUNNING")
    walk.world.container = None
    walk.run_until_idle(watch_for_loss(walk))
    assert walk.operations == [Operation.STARTING]
    assert walk.workspace.phase is Phase.RUNNING
    assert walk.workspace.error_count == 1
    walk.now += timedelta(minutes=10)
    walk.run_until_idle()
    assert walk.workspace.error_count == 0


def test_a_container_that_died_while_codehub_was_down_is_not_counted() -> None:
    walk = at("RUNNING")
    walk.world.container = None
    walk.restarted = True
    walk.run_until_idle(watch_for_loss(walk))
    assert walk.workspace.phase is Phase.RUNNING
    assert walk.workspace.error_count == 0


def test_an_undelete_at_any_step_of_a_deletion() -> None:
    for start in ("ARCHIVED", "STANDBY", "RUNNING"):
        for position in range(length((start, "DELETED"))):
            walk = walk_with_fault((start, "DELETED"), position, lambda walk: None)
            if walk.workspace.operation is not Operation.NONE:
                continue
            walk.set_desired_state(check_undelete(walk.workspace))
            walk.run_until_idle(watch_for_loss(walk))
            assert walk.workspace.phase == walk.workspace.desired_state
            walk.set_desired_state(DesiredState.RUNNING)
            walk.run_until_idle(watch_for_loss(walk))
            assert walk.workspace.phase is Phase.RUNNING


@pytest.mark.parametrize("transition", [("STANDBY", "ARCHIVED"), ("RUNNING", "DELETED")], ids="-".join)
def test_what_a_container_writes_after_the_archive_was_begun_is_not_lost(transition: tuple[str, str]) -> None:
    """A container that somebody starts by hand while no job holds the lock."""
    intruded = 0
    for position in range(length(transition)):
        walk = walk_with_fault(transition, position, lambda walk: None)
        if walk.world.home is None or walk.world.is_locked() or walk.world.container is not None:
            continue
        walk.world.container = Container("by hand", ready=True)
        walk.run_until_idle(watch_for_loss(walk))
        assert walk.workspace.phase == transition[1]
        assert walk.world.written in walk.world.archives.values()
        intruded += 1
    assert intruded >= 3
