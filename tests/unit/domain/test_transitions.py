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
from tests.unit.domain.workspace_model import Container, Home, SteppedController

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
Fault = Callable[[SteppedController], None]


@cache
def _at(level: Level) -> SteppedController:
    controller = SteppedController()
    if level is Level.PENDING:
        return controller
    controller.set_desired_state(DesiredState.RUNNING)
    controller.run_until_idle()
    controller.set_desired_state(DesiredState(level.value))
    controller.run_until_idle()
    controller.operations.clear()
    controller.sentences.clear()
    return controller


def at(start: str) -> SteppedController:
    return deepcopy(_at(Level(start)))


def watch_for_loss(controller: SteppedController) -> Callable[[], None]:
    def watch() -> None:
        sentences = "\n".join(controller.sentences)
        assert controller.world.has_complete_copy(), f"No complete copy is left:\n{sentences}"
        if controller.workspace.phase is Phase.ERROR:
            assert controller.workspace.operation is Operation.NONE

    return watch


def length(transition: tuple[str, str]) -> int:
    """Return the number of steps of the transition without a fault."""
    controller = at(transition[0])
    controller.set_desired_state(DesiredState(transition[1]))
    controller.run_until_idle()
    return len(controller.sentences)


def controller_with_fault(transition: tuple[str, str], position: int, fault: Fault) -> SteppedController:
    """SteppedController a transition up to a step, and inject a fault there."""
    controller = at(transition[0])
    controller.set_desired_state(DesiredState(transition[1]))
    watch = watch_for_loss(controller)
    for _ in range(position):
        controller.step()
        watch()
    fault(controller)
    return controller


@pytest.mark.parametrize("transition", TRANSITIONS, ids="-".join)
def test_every_transition_runs_its_operations_in_order(transition: tuple[str, str]) -> None:
    controller = at(transition[0])
    controller.set_desired_state(DesiredState(transition[1]))
    controller.run_until_idle(watch_for_loss(controller))
    assert controller.operations == TRANSITIONS[transition]
    assert controller.workspace.phase == transition[1]
    assert controller.workspace.error_count == 0
    assert (controller.world.container is not None) == (transition[1] == "RUNNING")
    assert (controller.world.home is not None) == (transition[1] in ("STANDBY", "RUNNING"))
    assert (controller.workspace.upstream is not None) == (transition[1] == "RUNNING")


def test_an_idle_workspace_is_left_alone() -> None:
    for transition in TRANSITIONS:
        controller = at(transition[0])
        controller.set_desired_state(DesiredState(transition[1]))
        controller.run_until_idle()
        rested = controller.workspace
        for _ in range(3):
            assert controller.step().effect is None
            assert controller.workspace == rested


def no_fault(controller: SteppedController) -> None:
    """Leave the transition undisturbed."""


def request_cancel(controller: SteppedController) -> None:
    controller.request(CANCEL)


def let_three_hours_pass(controller: SteppedController) -> None:
    controller.now += timedelta(hours=3)


def lose_the_effect(controller: SteppedController) -> None:
    controller.drop_effect = True


def restart(controller: SteppedController) -> None:
    controller.restarted = True


def kill_the_job(controller: SteppedController) -> None:
    controller.world.kill_all()


def kill_everything(controller: SteppedController) -> None:
    controller.world.kill_all()
    controller.restarted = True


def hide_container(controller: SteppedController) -> None:
    controller.distort = lambda observation: replace(observation, container=UNKNOWN)


def hide_volume(controller: SteppedController) -> None:
    controller.distort = lambda observation: replace(observation, volume=UNKNOWN)


def hide_archive(controller: SteppedController) -> None:
    def blind(observation: Observation) -> Observation:
        return (
            observation if isinstance(observation.archive, Skipped) else replace(observation, archive=UNKNOWN)
        )

    controller.distort = blind


def hide_everything(controller: SteppedController) -> None:
    controller.distort = lambda observation: replace(
        observation, container=UNKNOWN, volume=UNKNOWN, archive=UNKNOWN
    )


def miss_volume_once(controller: SteppedController) -> None:
    controller.distort = lambda observation: replace(observation, volume=None)


def observe_an_earlier_state(controller: SteppedController) -> None:
    past = replace(controller.observe(), at=controller.workspace.op_started_at or controller.now)
    controller.distort = lambda observation: replace(past, at=past.at - timedelta(seconds=1))


FAULTS = (
    lose_the_effect,
    restart,
    kill_the_job,
    kill_everything,
    hide_container,
    hide_volume,
    hide_archive,
    hide_everything,
    observe_an_earlier_state,
)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_transition_recovers_from_one_fault_at_any_step(fault: Fault) -> None:
    for transition in TRANSITIONS:
        for position in range(length(transition)):
            controller = controller_with_fault(transition, position, fault)
            controller.run_until_idle(watch_for_loss(controller))
            assert controller.workspace.phase == transition[1], "\n".join(controller.sentences)
            assert controller.workspace.error_reason is None or transition[1] == "RUNNING"


def test_a_volume_missed_once_is_not_lost() -> None:
    """Except for the observation in which the deletion after an archive could have removed it."""
    for transition in TRANSITIONS:
        for position in range(length(transition)):
            controller = controller_with_fault(transition, position, miss_volume_once)
            controller.run_until_idle(watch_for_loss(controller))
            assert controller.workspace.error_reason is not ErrorReason.DataLost


def test_a_cancel_at_any_step_keeps_the_workspace_at_its_level() -> None:
    for transition in TRANSITIONS:
        for position in range(length(transition)):
            controller = controller_with_fault(transition, position, request_cancel)
            before = controller.workspace
            controller.run_until_idle(watch_for_loss(controller))
            after = controller.workspace
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
            controller = controller_with_fault(transition, position, request_cancel)
            controller.run_until_idle(watch_for_loss(controller))
            controller.set_desired_state(DesiredState(transition[1]))
            controller.run_until_idle(watch_for_loss(controller))
            assert controller.workspace.phase == transition[1]


def test_a_timeout_at_any_step_loses_nothing_and_can_be_recovered() -> None:
    timed_out = 0
    for transition, and_kill in product(TRANSITIONS, (False, True)):
        for position in range(length(transition)):
            controller = controller_with_fault(transition, position, let_three_hours_pass)
            if and_kill:
                controller.world.kill_all()
            controller.run_until_idle(watch_for_loss(controller))
            if controller.workspace.error_reason is None:
                assert controller.workspace.phase == transition[1]
                continue
            assert controller.workspace.error_reason in (ErrorReason.Timeout, ErrorReason.ActionFailed)
            timed_out += 1
            if transition[1] == "DELETED":
                assert controller.world.container is None
                continue
            controller.request(RECOVER)
            controller.run_until_idle(watch_for_loss(controller))
            assert controller.workspace.phase == transition[1], "\n".join(controller.sentences)
    assert timed_out > 0


def lose_the_home(controller: SteppedController) -> None:
    controller.world.home = None


def test_a_home_lost_at_any_step_is_reported_and_never_replaced_without_a_request() -> None:
    lost = 0
    for transition in TRANSITIONS:
        for position in range(length(transition)):
            controller = controller_with_fault(transition, position, no_fault)
            expected = controller.workspace.home_ctx
            removed = (
                controller.workspace.operation is Operation.ARCHIVING and len(controller.world.archives) > 0
            )
            if controller.world.home is None or expected is None or removed:
                continue
            lose_the_home(controller)
            done = len(controller.operations)
            controller.run_until_idle()
            assert controller.workspace.error_reason in (
                ErrorReason.DataLost,
                ErrorReason.ContainerWithoutVolume,
            )
            assert not {Operation.PROVISIONING, Operation.RESTORING} & set(controller.operations[done:])
            assert controller.world.home is None
            assert controller.workspace.home_ctx == expected
            lost += 1
    assert lost > 20


@pytest.mark.parametrize("desired", [DesiredState.STANDBY, DesiredState.RUNNING])
def test_a_lost_archive_is_reported_after_two_observations_and_never_replaced_without_a_request(
    desired: DesiredState,
) -> None:
    controller = at("ARCHIVED")
    controller.world.archives.clear()
    controller.set_desired_state(desired)
    controller.run_until_idle()
    assert controller.workspace.error_reason is ErrorReason.DataLost
    assert home_is_lost(controller.workspace), "so that a recovery needs a choice"
    assert controller.operations == [Operation.RESTORING]
    assert controller.world.home is None


def test_a_restore_is_not_stopped_when_its_archive_goes_missing() -> None:
    controller = at("ARCHIVED")
    controller.set_desired_state(DesiredState.STANDBY)
    while not any(isinstance(job.effect, RestoreHome) for job in controller.world.jobs.values()):
        controller.step()
    without_archive = replace(controller.observe(), archive=None)
    for _ in range(3):
        controller.distort = lambda observation: replace(without_archive, at=observation.at)
        assert controller.step().effect is None
    controller.run_until_idle(watch_for_loss(controller))
    assert controller.workspace.phase is Phase.STANDBY


@pytest.mark.parametrize("desired", [DesiredState.STANDBY, DesiredState.RUNNING])
def test_a_lost_home_comes_back_from_the_archive_that_was_chosen(desired: DesiredState) -> None:
    controller = at("ARCHIVED")
    (chosen,) = controller.world.archives
    version = controller.world.archives[chosen]
    controller.set_desired_state(desired)
    controller.run_until_idle()
    lose_the_home(controller)
    controller.run_until_idle()
    controller.request(recover(RecoverSource.ARCHIVE, chosen))
    controller.run_until_idle()
    assert controller.workspace.phase == desired
    assert controller.world.home is not None
    assert controller.world.home.generation.archive_key == controller.workspace.archive_key
    assert desired is DesiredState.RUNNING or controller.world.home.version == version


@pytest.mark.parametrize("desired", [DesiredState.STANDBY, DesiredState.RUNNING])
def test_a_lost_home_comes_back_empty_when_that_was_chosen(desired: DesiredState) -> None:
    controller = at("ARCHIVED")
    controller.set_desired_state(desired)
    controller.run_until_idle()
    lose_the_home(controller)
    controller.run_until_idle()
    controller.request(recover(RecoverSource.EMPTY))
    controller.run_until_idle()
    assert controller.workspace.phase == desired
    assert controller.workspace.archive_key is None
    assert controller.world.archives, "what is left behind is kept"


@pytest.mark.parametrize("source", RecoverSource)
@pytest.mark.parametrize("desired", [DesiredState.STANDBY, DesiredState.RUNNING])
def test_a_choice_sets_a_foreign_home_aside_and_keeps_it(
    desired: DesiredState, source: RecoverSource
) -> None:
    controller = at("ARCHIVED")
    (stored,) = controller.world.archives
    controller.set_desired_state(desired)
    controller.run_until_idle()
    lose_the_home(controller)
    foreign = controller.world.home = Home(Generation("foreign", None), 7)
    controller.run_until_idle()
    assert controller.workspace.error_reason in (ErrorReason.DataLost, ErrorReason.ContainerWithoutVolume)
    assert controller.world.home is foreign
    controller.request(recover(source, stored if source is RecoverSource.ARCHIVE else None))
    controller.run_until_idle()
    assert controller.workspace.phase == desired
    assert controller.world.aside == [foreign]


def test_a_crash_loop_ends_in_error() -> None:
    controller = at("RUNNING")
    for _ in range(200):
        if controller.workspace.phase is Phase.RUNNING:
            controller.world.container = None
        controller.step()
        if controller.workspace.phase is Phase.ERROR:
            break
    assert controller.workspace.error_reason is ErrorReason.RetryExceeded
    assert controller.world.home is not None


def test_a_container_that_dies_once_is_started_again() -> None:
    controller = at("RUNNING")
    controller.world.container = None
    controller.run_until_idle(watch_for_loss(controller))
    assert controller.operations == [Operation.STARTING]
    assert controller.workspace.phase is Phase.RUNNING
    assert controller.workspace.error_count == 1
    controller.now += timedelta(minutes=10)
    controller.run_until_idle()
    assert controller.workspace.error_count == 0


def test_a_container_that_died_while_codehub_was_down_is_not_counted() -> None:
    controller = at("RUNNING")
    controller.world.container = None
    controller.restarted = True
    controller.run_until_idle(watch_for_loss(controller))
    assert controller.workspace.phase is Phase.RUNNING
    assert controller.workspace.error_count == 0


def test_an_undelete_at_any_step_of_a_deletion() -> None:
    for start in ("ARCHIVED", "STANDBY", "RUNNING"):
        for position in range(length((start, "DELETED"))):
            controller = controller_with_fault((start, "DELETED"), position, no_fault)
            if controller.workspace.operation is not Operation.NONE:
                continue
            controller.set_desired_state(check_undelete(controller.workspace))
            controller.run_until_idle(watch_for_loss(controller))
            assert controller.workspace.phase == controller.workspace.desired_state
            controller.set_desired_state(DesiredState.RUNNING)
            controller.run_until_idle(watch_for_loss(controller))
            assert controller.workspace.phase is Phase.RUNNING


@pytest.mark.parametrize("transition", [("STANDBY", "ARCHIVED"), ("RUNNING", "DELETED")], ids="-".join)
def test_writes_of_a_container_during_an_archive_are_not_lost(transition: tuple[str, str]) -> None:
    """A container that somebody starts by hand while no job holds the lock."""
    intruded = 0
    for position in range(length(transition)):
        controller = controller_with_fault(transition, position, no_fault)
        if (
            controller.world.home is None
            or controller.world.is_locked()
            or controller.world.container is not None
        ):
            continue
        controller.world.container = Container("by hand", ready=True)
        controller.run_until_idle(watch_for_loss(controller))
        assert controller.workspace.phase == transition[1]
        assert controller.world.written in controller.world.archives.values()
        intruded += 1
    assert intruded >= 3
