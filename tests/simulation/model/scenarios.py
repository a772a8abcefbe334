"""Scenarios: where an exploration starts, and its budget of requests and disturbances.

Within its budget each scenario is explored completely: every order of every step. The model leaves
out other workspaces and the limits, image pulls and their progress, `keep_until`, archives that rot
in the store, clocks that disagree, and a second GC or TTL runner beside a stale leader's.
"""

import time
from array import array
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from codehub.domain.states import DesiredState, Phase
from tests.simulation.model import (
    controller,
    disturbances,
    effects,
    programs,
    runners,
    storage,
    user_actions,
)
from tests.simulation.model.convergence import settles
from tests.simulation.model.engine import Model, State
from tests.simulation.model.row_conversion import NEW_ROW
from tests.simulation.model.search import explore
from tests.simulation.model.state_parts import (
    Activity,
    Arc,
    Container,
    Disk,
    Expected,
    Fact,
    Gc,
    Generation,
    Leader,
    Op,
    Record,
    Store,
    Stored,
    Ttl,
)

RULES_FROM = (controller, effects, storage, user_actions, programs, disturbances, runners)
DISTURBANCES = ("crash", "hang", "fault", "unseen", "outside", "kill", "die", "timeout")


class Budget(NamedTuple):
    """What is left to spend. Each disturbance also costs one `trouble`."""

    trouble: int = 0
    request: int = 0
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
    hold: int = 0
    empty_database: int = 0
    restore: int = 0


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
    "expected": Expected(b"ab", writes=2),
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
    "expected": Expected(b"ab", writes=2),
    "disk": Disk(fence=1),
    "store": Store((Stored(Arc(1), b"ab", True),), (Record(Arc(1)),)),
}

TWO_ARCHIVES: dict[str, Any] = {
    **STANDBY,
    "row": STANDBY["row"]._replace(
        archive_op=Arc(2), archive_key=Arc(2), home=Generation(Op(1), Arc(2))
    ),
    "expected": Expected(b"abc", writes=3),
    "disk": Disk(b"abc", Generation(Op(1), Arc(2)), fence=1),
    "store": Store(
        (Stored(Arc(1), b"a", True), Stored(Arc(2), b"ab", True)), (Record(Arc(1)), Record(Arc(2)))
    ),
    "gc": Gc(archives_kept=2),
}  # fmt: skip
"""Beside an older archive than the one that its home was restored from."""


def model(scenario: Scenario) -> Model:
    controller.cached_plan.cache_clear()
    return Model(spend, controller.on_commit, Budget(**scenario.budget))


def initial_state(made: Model, scenario: Scenario) -> State:
    """Return the state of a workspace that was just created."""
    values = {
        "row": NEW_ROW._replace(desired=scenario.desired),
        "expected": Expected(),
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


SAMPLE = 10
"""From every tenth state, convergence is checked."""


class Report(NamedTuple):
    """The result of an exploration, in a form that can be sent between processes."""

    scenario: Scenario
    states: int
    digests: "array[int]"
    depth: int
    transitions: int
    settled: int
    complete: bool
    seconds: float
    broken: str | None

    def report(self) -> str:
        spent = ", ".join(f"{kind} {count}" for kind, count in self.scenario.budget.items())
        return (
            f"{self.scenario.name}: {self.states:,} states ({len(self.digests):,} without "
            f"their budgets), {self.transitions:,} steps, depth {self.depth}, "
            f"{self.settled:,} settled, {self.seconds:.0f} s; {spent}"
        )


def explore_scenario(scenario: Scenario) -> Report:
    """Explore every reachable state, and check convergence from some of them."""
    made = model(scenario)
    begun = time.monotonic()
    found = explore(made, initial_state(made, scenario), sample=SAMPLE, settle=settles)
    return Report(
        scenario,
        found.states,
        found.digests,
        found.depth,
        found.transitions,
        found.settled,
        found.complete,
        time.monotonic() - begun,
        found.violations[0].report() if found.violations else None,
    )


ONCE = {"crash": 1, "hang": 1, "fault": 1, "unseen": 1, "outside": 1, "kill": 1, "die": 1, "timeout": 1}
TWICE = {"crash": 2, "hang": 1, "fault": 2, "unseen": 2, "outside": 2, "kill": 2, "die": 2, "timeout": 1}

PAIRS = {"request": 1, "write": 1, "trouble": 2}
EACH = {"request": 2, "write": 1, "trouble": 1, **ONCE}
THREE = {"request": 1, "write": 1, "trouble": 3}
TTL = {"use": 1, "ttl": 1, "time": 1}


def _scenario(name: str, values: dict[str, Any], budget: dict[str, int], **more: int) -> Scenario:
    return Scenario(name, {**budget, **more}, values=values)


SCENARIOS = (
    _scenario("new, every pair of troubles", {}, PAIRS, **ONCE),
    _scenario("running, every pair of troubles", RUNNING, PAIRS, **TWICE),
    _scenario("standby, losses and recoveries", STANDBY, PAIRS, request=3, outside=2),
    _scenario("running, TTL and activity", RUNNING, PAIRS, trouble=1, crash=1, hang=1, unseen=1, **TTL),
    _scenario("standby, GC and each trouble", STANDBY, ONCE, request=1, gc=2, time=1, trouble=1),
    _scenario("standby, every pair of troubles", STANDBY, PAIRS, **TWICE),
    _scenario("archived, every pair of troubles", ARCHIVED, PAIRS, **TWICE),
    _scenario("standby, three failures", STANDBY, THREE, fault=3, kill=3, unseen=3, crash=3),
    _scenario("standby, three changes of the leader", STANDBY, THREE, hang=2, crash=2, timeout=1),
    _scenario("running, three changes of the leader", RUNNING, THREE, hang=2, die=2),
    _scenario("standby, a slow start beside the TTL", STANDBY, TTL, request=1, trouble=1, crash=1, hang=1),
    _scenario("standby, trash and purge", STANDBY, {}, request=1, gc=2, time=3, trouble=1, crash=1, hang=1),
    _scenario("running, two requests and each trouble", RUNNING, EACH),
    _scenario("new, two requests and each trouble", {}, EACH),
    _scenario("standby, two requests and each trouble", STANDBY, EACH),
    _scenario("archived, two requests and each trouble", ARCHIVED, EACH),
    _scenario("standby, a restore and each trouble", TWO_ARCHIVES, ONCE, restore=1, request=1, trouble=1),
    _scenario("standby, a restore beside GC", TWO_ARCHIVES, {}, restore=1, gc=2, time=2),
    _scenario(
        "archived, an empty database", ARCHIVED, {}, gc=3, time=2, empty_database=1, trouble=1, crash=1
    ),
    _scenario("running, commands and leases", RUNNING, TTL, hold=2),
)
"""The largest first, so that two processes finish together."""
