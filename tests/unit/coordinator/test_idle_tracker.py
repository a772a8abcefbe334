"""Which workspaces a sweep observes one by one, and which it skips."""

from dataclasses import replace
from datetime import timedelta

import pytest

from codehub.coordinator.idle_tracker import (
    BulkObservation,
    IdleTracker,
    may_change_with_time,
    needs_full_observation,
)
from codehub.domain.observation import Unknown
from codehub.domain.observed_conditions import VANISHED
from codehub.domain.states import Operation
from codehub.domain.workspace import Workspace
from tests.unit.domain.builders import NOW, READY_CONTAINER, condition, conditions, volume, workspace

PRESENT = BulkObservation({"a": READY_CONTAINER}, {"a": volume(), "b": volume()})
VERSIONS = {"a": 1, "b": 1, "c": 1}


def row(name: str, version: int = 1, **given: object) -> Workspace:
    return replace(workspace(**given), id=name, version=version)


@pytest.fixture
def tracker() -> IdleTracker:
    tracker = IdleTracker()
    assert tracker.update(VERSIONS, PRESENT) == ["a", "b", "c"], "no workspace was found idle yet"
    for name in VERSIONS:
        tracker.mark_idle(row(name))
    assert tracker.update(dict(VERSIONS), PRESENT) == []
    return tracker


@pytest.mark.parametrize(
    ("versions", "bulk", "active"),
    [
        (VERSIONS | {"b": 2}, PRESENT, ["b"]),
        (VERSIONS | {"d": 1}, PRESENT, ["d"]),
        ({"a": 1, "b": 1}, PRESENT, []),
        (VERSIONS, replace(PRESENT, containers={}), ["a"]),
        (VERSIONS, replace(PRESENT, containers={"a": replace(READY_CONTAINER, ready=False)}), ["a"]),
        (VERSIONS, replace(PRESENT, containers={"a": READY_CONTAINER, "c": READY_CONTAINER}), ["c"]),
        (VERSIONS, replace(PRESENT, volumes={"a": volume()}), ["b"]),
        (VERSIONS, replace(PRESENT, volumes=Unknown("no disk")), []),
        (VERSIONS, replace(PRESENT, containers=Unknown("no engine")), []),
        (VERSIONS, replace(PRESENT, volumes=PRESENT.volumes | {"stranger": volume()}), []),  # type: ignore[operator]
    ],
)
def test_a_change_makes_a_workspace_active(
    tracker: IdleTracker, versions: dict[str, int], bulk: BulkObservation, active: list[str]
) -> None:
    assert tracker.update(versions, bulk) == active
    assert tracker.update(versions, bulk) == active, "until it is found idle again"


def test_after_an_outage_only_changed_workspaces_are_active(tracker: IdleTracker) -> None:
    assert tracker.update(VERSIONS, replace(PRESENT, volumes=Unknown("no disk"))) == []
    assert tracker.update(VERSIONS | {"c": 2}, replace(PRESENT, volumes=Unknown("no disk"))) == ["c"]
    tracker.mark_idle(row("c", version=2))
    assert tracker.update(VERSIONS | {"c": 2}, replace(PRESENT, volumes={"a": volume()})) == ["b"]


def test_a_row_that_changes_during_the_sweep_stays_active(tracker: IdleTracker) -> None:
    tracker.mark_active("a")
    assert tracker.update(VERSIONS, PRESENT) == ["a"]
    tracker.mark_idle(row("a", version=2))
    assert tracker.update(VERSIONS, PRESENT) == ["a"]


@pytest.mark.parametrize(
    "given",
    [
        {"next_retry_at": NOW + timedelta(seconds=5)},
        {"error_count": 1, "started_at": NOW},
        {"conditions": conditions(True, False, True, condition(True, "NotAnswering"))},
    ],
)
def test_a_workspace_that_time_may_change_stays_active(
    tracker: IdleTracker, given: dict[str, object]
) -> None:
    waiting = row("a", **given)
    assert may_change_with_time(waiting)
    tracker.mark_active("a")
    tracker.update(VERSIONS, PRESENT)
    tracker.mark_idle(waiting)
    assert tracker.update(VERSIONS, PRESENT) == ["a"]


def test_current_operations_and_vanished_containers_are_unfinished() -> None:
    assert needs_full_observation(workspace(operation=Operation.STARTING))
    assert needs_full_observation(workspace(conditions=conditions(condition(True, VANISHED))))
    assert not needs_full_observation(workspace(archive_key=None))
