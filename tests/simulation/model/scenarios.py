"""Where an exploration begins, and how much of each trouble it may spend."""

from dataclasses import dataclass, field
from typing import NamedTuple

from codehub.domain.states import DesiredState
from tests.simulation.model import controller, effects, people, runners, storage, troubles
from tests.simulation.model.engine import Model, State
from tests.simulation.model.parts import Activity, Disk, Gc, Leader, Store, Truth, Ttl
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
