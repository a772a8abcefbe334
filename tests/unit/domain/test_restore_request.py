"""A restore of a chosen archive, with every single fault at every step (ADR 0038)."""

from dataclasses import replace

import pytest

from codehub.domain.allowed_changes import archive_committed, check_cancel
from codehub.domain.archive_keys import archive_key, archive_op_id_of
from codehub.domain.observation import Observation
from codehub.domain.states import DesiredState, ErrorReason, Operation, Phase
from codehub.domain.workspace import PendingRequest, RequestKind
from tests.unit.domain.builders import CANCEL, ID, RECOVER, UNKNOWN
from tests.unit.domain.test_transitions import (
    FAULTS,
    Fault,
    at,
    kill_everything,
    let_three_hours_pass,
    no_fault,
    request_cancel,
    watch_for_loss,
)
from tests.unit.domain.workspace_model import Container, SteppedController

OLDEST = "ar0000"
"""An archive with an earlier version of the home than any other."""
VERSION = -1


def before_restore(start: str, *, beside_container: bool = False) -> SteppedController:
    controller = at(start)
    controller.world.archives[OLDEST] = VERSION
    if beside_container:
        controller.world.container = Container("late-0")
    controller.request(PendingRequest(RequestKind.RESTORE, "someone", archive_op_id=OLDEST))
    return controller


def steps_of(start: str) -> int:
    controller = before_restore(start)
    controller.run_until_idle()
    return len(controller.sentences)


def with_fault(start: str, position: int, fault: Fault) -> SteppedController:
    controller = before_restore(start)
    for _ in range(position):
        controller.step()
        watch_for_loss(controller)()
    fault(controller)
    return controller


def assert_restored(controller: SteppedController) -> None:
    world, row = controller.world, controller.workspace
    assert row.phase is Phase.STANDBY, "\n".join(controller.sentences)
    assert (row.request, row.error_reason) == (None, None)
    assert world.home is not None
    assert world.home.version == VERSION
    assert world.home.generation.archive_key == row.archive_key == archive_key(ID, OLDEST)
    assert world.written in world.archives.values(), "the present home is among the archives"


@pytest.mark.parametrize(
    ("start", "beside_container", "operations"),
    [
        ("STANDBY", False, [Operation.ARCHIVING, Operation.RESTORING]),
        ("STANDBY", True, [Operation.STOPPING, Operation.ARCHIVING, Operation.RESTORING]),
        ("ARCHIVED", False, [Operation.RESTORING]),
    ],
)
def test_a_restore_archives_the_present_home_first(
    start: str, beside_container: bool, operations: list[Operation]
) -> None:
    controller = before_restore(start, beside_container=beside_container)
    controller.run_until_idle(watch_for_loss(controller))
    assert controller.operations == operations
    assert_restored(controller)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_restore_recovers_from_one_fault_at_any_step(fault: Fault) -> None:
    for start in ("STANDBY", "ARCHIVED"):
        for position in range(steps_of(start)):
            controller = with_fault(start, position, fault)
            controller.run_until_idle(watch_for_loss(controller))
            assert_restored(controller)


def test_a_restore_waits_while_the_chosen_archive_cannot_be_checked() -> None:
    def hide(observation: Observation) -> Observation:
        return replace(observation, chosen=UNKNOWN)

    for position in range(steps_of("STANDBY")):
        controller = with_fault("STANDBY", position, no_fault)
        home = controller.world.home
        committed = controller.workspace.archive_to_restore is None
        for _ in range(20):
            controller.distort = hide
            controller.step()
            watch_for_loss(controller)()
        unfinished = [job for job in controller.world.jobs if job.endswith("-delete")]
        assert committed or unfinished or controller.world.home == home
        controller.run_until_idle(watch_for_loss(controller))
        assert_restored(controller)


def test_a_restore_that_waits_for_the_chosen_archive_can_be_cancelled() -> None:
    def hide(observation: Observation) -> Observation:
        return replace(observation, chosen=UNKNOWN)

    committed = 0
    for position in range(steps_of("STANDBY")):
        controller = with_fault("STANDBY", position, no_fault)
        home, present = controller.world.home, controller.world.written
        for _ in range(20):
            controller.distort = hide
            controller.step()
        row = controller.workspace
        if row.archive_to_restore is None or home is None or controller.world.home != home:
            continue
        committed += archive_committed(row)
        check_cancel(row)
        controller.request(CANCEL)
        controller.run_until_idle(watch_for_loss(controller))
        after = controller.workspace
        assert (after.request, after.error_reason, after.phase) == (None, None, Phase.STANDBY)
        assert controller.world.home is not None
        assert controller.world.home.version == present
    assert committed > 0


def test_a_cancel_while_the_home_is_removed_leaves_it_in_its_archive() -> None:
    removing = 0
    for position in range(steps_of("STANDBY")):
        controller = with_fault("STANDBY", position, no_fault)
        world, key = controller.world, controller.workspace.archive_key
        jobs = [job for job in world.jobs if job.endswith("-delete")]
        if not jobs or controller.workspace.operation is not Operation.ARCHIVING:
            continue
        removing += 1
        check_cancel(controller.workspace)
        controller.request(CANCEL)
        controller.run_until_idle(watch_for_loss(controller))
        after = controller.workspace
        assert (after.request, after.error_reason) == (None, None)
        assert after.phase.value == after.desired_state
        assert after.archive_key == key, "the chosen archive replaces nothing"
        assert world.archives[archive_op_id_of(key or "")] == world.written
        assert world.home is None or world.home.generation.archive_key == key, "the removal went on"
    assert removing > 0


def test_a_chosen_archive_that_vanishes_costs_no_home() -> None:
    """Before the commit of the choice the present home stays or returns; after it, it is DataLost."""
    lost = 0
    for start in ("STANDBY", "ARCHIVED"):
        for position in range(steps_of(start) - 1):
            controller = with_fault(start, position, no_fault)
            present, row = controller.world.written, controller.workspace
            read = any(
                job.effect.__class__.__name__ == "RestoreHome" for job in controller.world.jobs.values()
            )
            del controller.world.archives[OLDEST]
            controller.run_until_idle(watch_for_loss(controller))
            after = controller.workspace
            if row.archive_to_restore is None:
                lost += after.error_reason is ErrorReason.DataLost
                assert after.error_reason is ErrorReason.DataLost or read
                assert present in controller.world.archives.values()
                continue
            assert (after.request, after.error_reason, after.phase.value) == (None, None, start)
            if start == "STANDBY":
                assert controller.world.home is not None
                assert controller.world.home.version == present
    assert lost > 0


def test_a_cancel_at_any_step_drops_the_restore_or_ends_it() -> None:
    for start in ("STANDBY", "ARCHIVED"):
        for position in range(steps_of(start)):
            controller = with_fault(start, position, request_cancel)
            pending = position == 0 or controller.workspace.operation is Operation.ARCHIVING
            key = controller.workspace.archive_key
            controller.run_until_idle(watch_for_loss(controller))
            after = controller.workspace
            assert (after.request, after.error_reason) == (None, None)
            assert after.phase == after.desired_state
            if pending:
                assert after.archive_key == key, "the chosen archive replaces nothing"


def test_an_error_drops_the_restore_and_a_recovery_does_not_resume_it() -> None:
    dropped = 0
    for position in range(steps_of("STANDBY")):
        controller = with_fault("STANDBY", position, let_three_hours_pass)
        kill_everything(controller)
        pending = controller.workspace.archive_to_restore is not None
        controller.run_until_idle(watch_for_loss(controller))
        if controller.workspace.error_reason is None or not pending:
            continue
        dropped += 1
        assert controller.workspace.request is None
        controller.request(RECOVER)
        controller.run_until_idle(watch_for_loss(controller))
        assert controller.workspace.phase is Phase.STANDBY
        assert controller.world.home is not None
        assert controller.world.home.version == controller.world.written
    assert dropped > 0


def test_the_current_archive_may_be_restored_to_discard_what_has_changed_since() -> None:
    controller = at("ARCHIVED")
    controller.set_desired_state(DesiredState.STANDBY)
    controller.run_until_idle()
    assert controller.world.home is not None
    controller.world.home.version = controller.world.written = 99
    current = archive_op_id_of(controller.workspace.archive_key or "")
    controller.request(PendingRequest(RequestKind.RESTORE, "someone", archive_op_id=current))
    controller.run_until_idle(watch_for_loss(controller))
    assert controller.world.home is not None
    assert controller.world.home.version == controller.world.archives[current]
    assert 99 in controller.world.archives.values()
