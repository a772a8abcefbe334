"""Crash matrix of one scenario: kills before and after every step, with each set of victims."""

import asyncio
import re
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from tests.chaos.crash_matrix.crash_run import NOT_REACHED, Crash, Outcome, record_points, run_with_crash
from tests.chaos.crash_matrix.installation import Installation
from tests.chaos.crash_matrix.scenario import Scenario
from tests.chaos.crash_matrix.steps import AFTER, BEFORE, COORDINATOR, JOB, CrashPoint
from tests.selection import EVERYTHING, sample

VICTIMS = {"coordinator": (COORDINATOR,), "job": (JOB,), "both": (COORDINATOR, JOB)}
CRASHES_PER_SCENARIO = 4
"""How many crashes of a scenario `make test` runs."""
REPEATED, OTHER_SCENARIO, NOT_REPRODUCED = "repeated", "another scenario's", "not in both recordings"
"""Reasons to skip a crash point."""

_REPEATED = re.compile(
    r".*(progress|\.\.\.|commit (purge|remember)).* #\d+|.*chunk #(?!5$)\d+"
    r"|(become leader|send SIG[A-Z]+|commit [a-z_, ]+) #\d+"
)
"""Steps that repeat: the first is enough, and of a stream also one in the middle."""
_DEPENDS_ON_TIME = re.compile(
    r"commit (?!claimed|finished|archived|recovered|chosen|purge|mark_archive_removed)[a-z_, ]+|.*progress.*"
)
"""Steps that depend on when the coordinator observes: a run may end without them."""
_READS = re.compile(r"(GET|HEAD) .*")


@dataclass(frozen=True)
class Cell:
    """One crash, which stands for every point between the same two external effects."""

    target: str
    points: tuple[CrashPoint, ...]

    @property
    def crash(self) -> Crash:
        return Crash(self.points[0], VICTIMS[self.target])

    @property
    def title(self) -> str:
        _, step, side = self.points[0]
        return f"kill {self.target} {side} {step!r}"

    def replay(self, scenario: Scenario, store: str) -> str:
        words = (
            "python",
            "-m",
            "tests.chaos.crash_matrix",
            scenario.name,
            store,
            self.target,
            *self.points[0],
        )
        return shlex.join(words)


@dataclass(frozen=True)
class Result:
    cell: Cell
    outcome: Outcome


@dataclass(frozen=True)
class MatrixRun:
    cells: list[Cell]
    """Every possible crash."""
    results: list[Result]
    """Results of the chosen cells."""
    skipped: Mapping[str, int]
    """Reason -> how many points were skipped."""

    @property
    def steps(self) -> set[str]:
        """Return the steps that have a crash, whether or not the crash was chosen to run."""
        passed = {result.cell for result in self.results if result.outcome.summary == NOT_REACHED}
        return {point.step for cell in self.cells if cell not in passed for point in cell.points}


async def run(
    installations: list[Installation], scenario: Scenario, store: str, hashes: dict[str, str]
) -> MatrixRun:
    """Run the chosen cells, on all installations in parallel."""
    recordings = await _recordings(installations, scenario)
    found = cells(scenario, *recordings)
    chosen = sample(found, CRASHES_PER_SCENARIO, f"crashes of {scenario.name} ({store})")
    results: dict[Cell, Outcome] = {}
    queue = list(reversed(chosen))

    async def work(installation: Installation) -> None:
        while queue:
            cell = queue.pop()
            optional = depends_on_time(scenario, cell.crash.point.step)
            results[cell] = await run_with_crash(
                installation, scenario, cell.crash, hashes, optional=optional
            )

    await asyncio.gather(*(work(installation) for installation in installations))
    results_in_order = [Result(cell, results[cell]) for cell in chosen]
    return MatrixRun(found, results_in_order, _skipped(scenario, *recordings))


async def _recordings(
    installations: list[Installation], scenario: Scenario
) -> tuple[list[CrashPoint], list[CrashPoint]]:
    """Record the scenario twice: only steps of both recordings are sure to belong to it."""
    first, *others = installations
    if not others:
        return await record_points(first, scenario), await record_points(first, scenario)
    one, two = await asyncio.gather(record_points(first, scenario), record_points(others[0], scenario))
    return one, two


def cells(scenario: Scenario, first: list[CrashPoint], second: list[CrashPoint]) -> list[Cell]:
    """Return a cell for every crash point that both recordings have.

    In `make test`, points between the same external effects share one cell, and steps that another
    scenario covers have none. `make test-all` has a cell for every point.
    """
    found = []
    for points in _between_effects(first, set(pairwise(second))):
        chosen = [point for point in points if _skip_reason(point, scenario, first, second) is None]
        for target in VICTIMS:
            points_of_target = tuple(point for point in chosen if _can_kill(target, point))
            groups = zip(points_of_target) if EVERYTHING else [points_of_target]
            found += [Cell(target, group) for group in groups if group]
    return found


def _can_kill(target: str, point: CrashPoint) -> bool:
    """Return whether the target dies at this point.

    A job survives its coordinator, so one side of the job's steps is enough for the coordinator's
    crash.
    """
    if point.process == COORDINATOR:
        return target == "coordinator"
    return target != "coordinator" or (point.process == JOB and point.side == BEFORE)


def _skipped(scenario: Scenario, first: list[CrashPoint], second: list[CrashPoint]) -> Counter[str]:
    points = {*first, *second}
    return Counter(why for point in points if (why := _skip_reason(point, scenario, first, second)))


def _between_effects(
    points: list[CrashPoint], neighbours: set[tuple[CrashPoint, CrashPoint]]
) -> list[list[CrashPoint]]:
    """Group the points of one process between which no process has an effect."""
    groups = [points[:1]]
    for before, point in pairwise(points):
        alone = (before.process == COORDINATOR) == (point.process == COORDINATOR) and (
            before,
            point,
        ) in neighbours
        if alone and (point.side == BEFORE or _READS.fullmatch(point.step)):
            groups[-1].append(point)
        else:
            groups.append([point])
    return groups


def _skip_reason(
    point: CrashPoint, scenario: Scenario, first: list[CrashPoint], second: list[CrashPoint]
) -> str | None:
    """Return the reason to skip this point, or None.

    A failed effect has no AFTER in a recording.
    """
    if scenario.only_steps and not EVERYTHING and not re.fullmatch(scenario.only_steps, point.step):
        return OTHER_SCENARIO
    if _REPEATED.fullmatch(point.step):
        return REPEATED
    ended = point._replace(side=AFTER)
    return None if ended in first and ended in second else NOT_REPRODUCED


def depends_on_time(scenario: Scenario, step: str) -> bool:
    """Return whether the scenario may end without the step. Every other step must be reached."""
    return step not in scenario.required_steps and _DEPENDS_ON_TIME.fullmatch(step) is not None
