"""Which workspaces a pass looks at closely, and which it may leave alone."""

from dataclasses import replace
from datetime import timedelta

import pytest

from codehub.coordinator.idle_tracker import BulkObservation, IdleTracker, is_unfinished, waits_for_time
from codehub.domain.observation import Unknown
from codehub.domain.observe import VANISHED
from codehub.domain.states import Operation
from codehub.domain.workspace import Workspace
from tests.unit.domain.builders import NOW, READY_CONTAINER, condition, conditions, volume, workspace

HERE = BulkObservation({"a": READY_CONTAINER}, {"a": volume(), "b": volume()})
VERSIONS = {"a": 1, "b": 1, "c": 1}


def row(name: str, version: int = 1, **given: object) -> Workspace:
    return replace(workspace(**given), id=name, version=version)


@pytest.fixture
def resting() -> IdleTracker:
    found = IdleTracker()
    assert found.others(VERSIONS, HERE) == ["a", "b", "c"], "nobody was found at rest yet"
    for name in VERSIONS:
        found.add(row(name))
    assert found.others(dict(VERSIONS), HERE) == []
    return found


@pytest.mark.parametrize(
    ("versions", "seen", "others"),
    [
        (VERSIONS | {"b": 2}, HERE, ["b"]),
        (VERSIONS | {"d": 1}, HERE, ["d"]),
        ({"a": 1, "b": 1}, HERE, []),
        (VERSIONS, replace(HERE, containers={}), ["a"]),
        (VERSIONS, replace(HERE, containers={"a": replace(READY_CONTAINER, ready=False)}), ["a"]),
        (VERSIONS, replace(HERE, containers={"a": READY_CONTAINER, "c": READY_CONTAINER}), ["c"]),
        (VERSIONS, replace(HERE, volumes={"a": volume()}), ["b"]),
        (VERSIONS, replace(HERE, volumes=Unknown("no disk")), []),
        (VERSIONS, replace(HERE, containers=Unknown("no engine")), []),
        (VERSIONS, replace(HERE, volumes=HERE.volumes | {"stranger": volume()}), []),  # type: ignore[operator]
    ],
)
def test_what_changes_is_looked_at(
    resting: IdleTracker, versions: dict[str, int], seen: BulkObservation, others: list[str]
) -> None:
    assert resting.others(versions, seen) == others
    assert resting.others(versions, seen) == others, "until it is found at rest again"


def test_after_an_outage_only_what_changed_meanwhile_is_looked_at(resting: IdleTracker) -> None:
    assert resting.others(VERSIONS, replace(HERE, volumes=Unknown("no disk"))) == []
    assert resting.others(VERSIONS | {"c": 2}, replace(HERE, volumes=Unknown("no disk"))) == ["c"]
    resting.add(row("c", version=2))
    assert resting.others(VERSIONS | {"c": 2}, replace(HERE, volumes={"a": volume()})) == ["b"]


def test_a_row_that_changed_during_the_pass_does_not_rest(resting: IdleTracker) -> None:
    resting.disturb("a")
    assert resting.others(VERSIONS, HERE) == ["a"]
    resting.add(row("a", version=2))
    assert resting.others(VERSIONS, HERE) == ["a"]


@pytest.mark.parametrize(
    "given",
    [
        {"next_retry_at": NOW + timedelta(seconds=5)},
        {"error_count": 1, "started_at": NOW},
        {"conditions": conditions(True, False, True, condition(True, "NotAnswering"))},
    ],
)
def test_time_alone_may_end_a_rest(resting: IdleTracker, given: dict[str, object]) -> None:
    waiting = row("a", **given)
    assert waits_for_time(waiting)
    resting.disturb("a")
    resting.others(VERSIONS, HERE)
    resting.add(waiting)
    assert resting.others(VERSIONS, HERE) == ["a"]


def test_what_is_under_way_or_has_vanished_is_unfinished() -> None:
    assert is_unfinished(workspace(operation=Operation.STARTING))
    assert is_unfinished(workspace(conditions=conditions(condition(True, VANISHED))))
    assert not is_unfinished(workspace(archive_key=None))
