"""Where an exploration begins, and how much of each trouble it may spend."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from codehub.domain.states import DesiredState, Phase
from tests.simulation.model import controller, effects, people, runners, storage, troubles
from tests.simulation.model.engine import Model, State
from tests.simulation.model.parts import (
    Activity,
    Arc,
    Container,
    Disk,
    Fact,
    Gc,
    Generation,
    Leader,
    Op,
    Record,
    Store,
    Stored,
    Truth,
    Ttl,
)
from tests.simulation.model.rows import NEW_ROW

RULES_FROM = (controller, effects, storage, people, troubles, runners)
DISTURBANCES = ("crash", "hang", "fault", "unseen", "outside", "kill", "die", "timeout")


class Budget(NamedTuple):
    """What may still be spent. `trouble` is spent together with each disturbance."""

    trouble: int = 0
    wish: int = 0
    write: int = 0
    crash: int = 0
    hang: int = 0
    fault: int = 0
    unseen: int = 0
    outside: int = 0
    kill: int = 0
    die: int = 0
    timeout: int = 0
    time: int = 0
    ttl: int = 0
    gc: int = 0
    use: int = 0
    blind: int = 0


def spend(budget: Budget, cost: str) -> Budget | None:
    left = getattr(budget, cost) - 1
    trouble = budget.trouble - (cost in DISTURBANCES)
    return None if left < 0 or trouble < 0 else budget._replace(**{cost: left, "trouble": trouble})


@dataclass(frozen=True)
class Scenario:
    name: str
    budget: dict[str, int]
    desired: DesiredState = DesiredState.RUNNING
    values: dict[str, object] = field(default_factory=dict)


_HOME = Generation(Op(1), Arc(1))
_READY = Fact(True, "Ready")

STANDBY: dict[str, Any] = {
    "row": NEW_ROW._replace(
        desired=DesiredState.STANDBY, phase=Phase.STANDBY, volume=_READY, archive=_READY,
        exists=Fact(False, "NoContainer"), ready=Fact(False, "NotRunning"), healthy=Fact(True, "Healthy"),
        archive_op=Arc(1), archive_key=Arc(1), home=_HOME,
    ),
    "truth": Truth(b"ab", writes=2),
    "disk": Disk(b"ab", _HOME, fence=1),
    "store": Store((Stored(Arc(1), b"a", True),), (Record(Arc(1)),)),
    "lead": Leader(1, seen=True),
}  # fmt: skip
"""Restored from an archive once, and changed since."""

RUNNING: dict[str, Any] = {
    **STANDBY,
    "row": STANDBY["row"]._replace(
        desired=DesiredState.RUNNING, phase=Phase.RUNNING, exists=Fact(True, "Running"), ready=_READY,
        started="recent",
    ),
    "container": Container(Op(1), 0, _HOME, "ready"),
}  # fmt: skip

ARCHIVED: dict[str, Any] = {
    **STANDBY,
    "row": STANDBY["row"]._replace(
        desired=DesiredState.ARCHIVED, phase=Phase.ARCHIVED, volume=Fact(False, "NoVolume"), home=None
    ),
    "truth": Truth(b"ab", writes=2),
    "disk": Disk(fence=1),
    "store": Store((Stored(Arc(1), b"ab", True),), (Record(Arc(1)),)),
}


def model(scenario: Scenario) -> Model:
    controller.planned.cache_clear()
    return Model(spend, controller.on_commit, Budget(**scenario.budget))


def beginning(made: Model, scenario: Scenario) -> State:
    """A workspace that was just created."""
    values = {
        "row": NEW_ROW._replace(desired=scenario.desired),
        "truth": Truth(),
        "container": None,
        "disk": Disk(),
        "store": Store(),
        "jobs": (),
        "lead": Leader(1),
        "stale": None,
        "activity": Activity(),
        "ttl": Ttl(),
        "gc": Gc(),
        "budget": made.budget,
    }
    return made.state({**values, **scenario.values})
