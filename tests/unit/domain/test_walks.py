"""Every way from every level to every wish, with every single fault at every step of it."""

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
WAYS = {
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
    walk.wish(DesiredState.RUNNING)
    walk.settle()
    walk.wish(DesiredState(level.value))
    walk.settle()
    walk.operations.clear()
    walk.sentences.clear()
    return walk


def at(start: str) -> Walk:
    return deepcopy(_at(Level(start)))


def watched(walk: Walk) -> Callable[[], None]:
    def watch() -> None:
        words = "\n".join(walk.sentences)
        assert walk.world.has_complete_copy(), f"No complete copy is left:\n{words}"
        if walk.workspace.phase is Phase.ERROR:
            assert walk.workspace.operation is Operation.NONE

    return watch


def length(way: tuple[str, str]) -> int:
    """How many steps the undisturbed way takes."""
    walk = at(way[0])
    walk.wish(DesiredState(way[1]))
    walk.settle()
    return len(walk.sentences)


def disturbed(way: tuple[str, str], position: int, fault: Fault) -> Walk:
    """Walk a way with one fault at one step of it."""
    walk = at(way[0])
    walk.wish(DesiredState(way[1]))
    watch = watched(walk)
    for _ in range(position):
        walk.go()
        watch()
    fault(walk)
    return walk


@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_every_way_is_taken_in_order(way: tuple[str, str]) -> None:
    walk = at(way[0])
    walk.wish(DesiredState(way[1]))
    walk.settle(watched(walk))
    assert walk.operations == WAYS[way]
    assert walk.workspace.phase == way[1]
    assert walk.workspace.error_count == 0
    assert (walk.world.container is not None) == (way[1] == "RUNNING")
    assert (walk.world.home is not None) == (way[1] in ("STANDBY", "RUNNING"))
    assert (walk.workspace.upstream is not None) == (way[1] == "RUNNING")


def test_what_is_at_rest_is_left_alone() -> None:
    for way in WAYS:
        walk = at(way[0])
        walk.wish(DesiredState(way[1]))
        walk.settle()
        rested = walk.workspace
        for _ in range(3):
            assert walk.go().effect is None
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
    walk.distort = lambda look: replace(look, container=UNKNOWN)


def see_no_volume(walk: Walk) -> None:
    walk.distort = lambda look: replace(look, volume=UNKNOWN)


def see_no_archive(walk: Walk) -> None:
    def blind(look: Observation) -> Observation:
        return look if isinstance(look.archive, Skipped) else replace(look, archive=UNKNOWN)

    walk.distort = blind


def see_nothing(walk: Walk) -> None:
    walk.distort = lambda look: replace(look, container=UNKNOWN, volume=UNKNOWN, archive=UNKNOWN)


def miss_the_volume_once(walk: Walk) -> None:
    walk.distort = lambda look: replace(look, volume=None)


def see_the_past(walk: Walk) -> None:
    past = replace(walk.look(), at=walk.workspace.op_started_at or walk.now)
    walk.distort = lambda look: replace(past, at=past.at - timedelta(seconds=1))


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
def test_one_fault_anywhere_is_overcome(fault: Fault) -> None:
    for way in WAYS:
        for position in range(length(way)):
            walk = disturbed(way, position, fault)
            walk.settle(watched(walk))
            assert walk.workspace.phase == way[1], "\n".join(walk.sentences)
            assert walk.workspace.error_reason is None or way[1] == "RUNNING"


def test_a_volume_missed_once_is_not_lost() -> None:
    """Except under the very look in which an archive's own deletion could have removed it."""
    for way in WAYS:
        for position in range(length(way)):
            walk = disturbed(way, position, miss_the_volume_once)
            walk.settle(watched(walk))
            assert walk.workspace.error_reason is not ErrorReason.DataLost


def test_a_cancel_anywhere_rests_where_the_workspace_stands() -> None:
    for way in WAYS:
        for position in range(length(way)):
            walk = disturbed(way, position, lambda walk: walk.ask(CANCEL))
            before = walk.workspace
            walk.settle(watched(walk))
            after = walk.workspace
            assert after.request is None
            assert (after.error_count, after.error_reason) == (0, None)
            if way[1] == "DELETED":
                assert after.phase is Phase.DELETED
                continue
            assert after.phase == after.desired_state
            low, high = sorted(LEVELS.index(Level(level)) for level in way)
            assert low <= LEVELS.index(Level(after.phase.value)) <= high
            if before.operation is Operation.ARCHIVING and before.archive_key is None:
                assert after.phase is Phase.STANDBY


def test_a_cancelled_way_can_be_taken_again() -> None:
    for way in WAYS:
        for position in range(length(way)):
            walk = disturbed(way, position, lambda walk: walk.ask(CANCEL))
            walk.settle(watched(walk))
            walk.wish(DesiredState(way[1]))
            walk.settle(watched(walk))
            assert walk.workspace.phase == way[1]


def test_a_time_out_anywhere_loses_nothing_and_can_be_recovered() -> None:
    timed_out = 0
    for way, and_kill in product(WAYS, (False, True)):
        for position in range(length(way)):
            walk = disturbed(way, position, lambda walk: setattr(walk, "now", walk.now + timedelta(hours=3)))
            if and_kill:
                walk.world.kill_all()
            walk.settle(watched(walk))
            if walk.workspace.error_reason is None:
                assert walk.workspace.phase == way[1]
                continue
            assert walk.workspace.error_reason in (ErrorReason.Timeout, ErrorReason.ActionFailed)
            timed_out += 1
            if way[1] == "DELETED":
                assert walk.world.container is None
                continue
            walk.ask(RECOVER)
            walk.settle(watched(walk))
            assert walk.workspace.phase == way[1], "\n".join(walk.sentences)
    assert timed_out > 0


def lose_the_home(walk: Walk) -> None:
    walk.world.home = None


def test_a_home_lost_anywhere_is_told_and_never_replaced_unasked() -> None:
    lost = 0
    for way in WAYS:
        for position in range(length(way)):
            walk = disturbed(way, position, lambda walk: None)
            expected = walk.workspace.home_ctx
            removed = walk.workspace.operation is Operation.ARCHIVING and len(walk.world.archives) > 0
            if walk.world.home is None or expected is None or removed:
                continue
            lose_the_home(walk)
            done = len(walk.operations)
            walk.settle()
            assert walk.workspace.error_reason in (ErrorReason.DataLost, ErrorReason.ContainerWithoutVolume)
            assert not {Operation.PROVISIONING, Operation.RESTORING} & set(walk.operations[done:])
            assert walk.world.home is None
            assert walk.workspace.home_ctx == expected
            lost += 1
    assert lost > 20


@pytest.mark.parametrize("wish", [DesiredState.STANDBY, DesiredState.RUNNING])
def test_a_lost_archive_is_told_after_two_looks_and_never_replaced_unasked(wish: DesiredState) -> None:
    walk = at("ARCHIVED")
    walk.world.archives.clear()
    walk.wish(wish)
    walk.settle()
    assert walk.workspace.error_reason is ErrorReason.DataLost
    assert home_is_lost(walk.workspace), "so that a recovery must be told what to come back with"
    assert walk.operations == [Operation.RESTORING]
    assert walk.world.home is None


def test_a_restore_that_reads_the_last_of_an_archive_is_not_stopped() -> None:
    walk = at("ARCHIVED")
    walk.wish(DesiredState.STANDBY)
    while not any(isinstance(job.effect, RestoreHome) for job in walk.world.jobs.values()):
        walk.go()
    looked = replace(walk.look(), archive=None)
    for _ in range(3):
        walk.distort = lambda look: replace(looked, at=look.at)
        assert walk.go().effect is None
    walk.settle(watched(walk))
    assert walk.workspace.phase is Phase.STANDBY


@pytest.mark.parametrize("wish", [DesiredState.STANDBY, DesiredState.RUNNING])
def test_a_lost_home_comes_back_from_the_archive_that_was_chosen(wish: DesiredState) -> None:
    walk = at("ARCHIVED")
    (chosen,) = walk.world.archives
    version = walk.world.archives[chosen]
    walk.wish(wish)
    walk.settle()
    lose_the_home(walk)
    walk.settle()
    walk.ask(recover(RecoverSource.ARCHIVE, chosen))
    walk.settle()
    assert walk.workspace.phase == wish
    assert walk.world.home is not None
    assert walk.world.home.generation.archive_key == walk.workspace.archive_key
    assert wish is DesiredState.RUNNING or walk.world.home.version == version


@pytest.mark.parametrize("wish", [DesiredState.STANDBY, DesiredState.RUNNING])
def test_a_lost_home_comes_back_empty_when_that_was_chosen(wish: DesiredState) -> None:
    walk = at("ARCHIVED")
    walk.wish(wish)
    walk.settle()
    lose_the_home(walk)
    walk.settle()
    walk.ask(recover(RecoverSource.EMPTY))
    walk.settle()
    assert walk.workspace.phase == wish
    assert walk.workspace.archive_key is None
    assert walk.world.archives, "what is left behind is kept"


@pytest.mark.parametrize("source", RecoverSource)
@pytest.mark.parametrize("wish", [DesiredState.STANDBY, DesiredState.RUNNING])
def test_a_choice_sets_a_foreign_home_aside_and_keeps_it(wish: DesiredState, source: RecoverSource) -> None:
    walk = at("ARCHIVED")
    (stored,) = walk.world.archives
    walk.wish(wish)
    walk.settle()
    lose_the_home(walk)
    foreign = walk.world.home = Home(Generation("foreign", None), 7)
    walk.settle()
    assert walk.workspace.error_reason in (ErrorReason.DataLost, ErrorReason.ContainerWithoutVolume)
    assert walk.world.home is foreign
    walk.ask(recover(source, stored if source is RecoverSource.ARCHIVE else None))
    walk.settle()
    assert walk.workspace.phase == wish
    assert walk.world.aside == [foreign]


def test_a_crash_loop_ends_in_error() -> None:
    walk = at("RUNNING")
    for _ in range(200):
        if walk.workspace.phase is Phase.RUNNING:
            walk.world.container = None
        walk.go()
        if walk.workspace.phase is Phase.ERROR:
            break
    assert walk.workspace.error_reason is ErrorReason.RetryExceeded
    assert walk.world.home is not None


def test_a_container_that_dies_once_is_started_again() -> None:
    walk = at("RUNNING")
    walk.world.container = None
    walk.settle(watched(walk))
    assert walk.operations == [Operation.STARTING]
    assert walk.workspace.phase is Phase.RUNNING
    assert walk.workspace.error_count == 1
    walk.now += timedelta(minutes=10)
    walk.settle()
    assert walk.workspace.error_count == 0


def test_a_container_that_died_while_codehub_was_down_is_not_counted() -> None:
    walk = at("RUNNING")
    walk.world.container = None
    walk.restarted = True
    walk.settle(watched(walk))
    assert walk.workspace.phase is Phase.RUNNING
    assert walk.workspace.error_count == 0


def test_undelete_anywhere_on_the_way_down() -> None:
    for start in ("ARCHIVED", "STANDBY", "RUNNING"):
        for position in range(length((start, "DELETED"))):
            walk = disturbed((start, "DELETED"), position, lambda walk: None)
            if walk.workspace.operation is not Operation.NONE:
                continue
            walk.wish(check_undelete(walk.workspace))
            walk.settle(watched(walk))
            assert walk.workspace.phase == walk.workspace.desired_state
            walk.wish(DesiredState.RUNNING)
            walk.settle(watched(walk))
            assert walk.workspace.phase is Phase.RUNNING


@pytest.mark.parametrize("way", [("STANDBY", "ARCHIVED"), ("RUNNING", "DELETED")], ids="-".join)
def test_what_a_container_writes_after_the_archive_was_begun_is_not_lost(way: tuple[str, str]) -> None:
    """One that somebody starts by hand, whenever no job holds the lock."""
    intruded = 0
    for position in range(length(way)):
        walk = disturbed(way, position, lambda walk: None)
        if walk.world.home is None or walk.world.is_locked() or walk.world.container is not None:
            continue
        walk.world.container = Container("by hand", ready=True)
        walk.settle(watched(walk))
        assert walk.workspace.phase == way[1]
        assert walk.world.written in walk.world.archives.values()
        intruded += 1
    assert intruded >= 3
