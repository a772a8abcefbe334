"""The matrix of one operation: every step of every process, each side of it, whoever dies there."""

import asyncio
import re
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from tests.chaos.crash_matrix.lane import Lane
from tests.chaos.crash_matrix.play import NOT_REACHED, Death, Outcome, play, record
from tests.chaos.crash_matrix.scenario import Scenario
from tests.chaos.crash_matrix.steps import AFTER, BEFORE, COORDINATOR, JOB, Moment
from tests.selection import EVERYTHING, sample

WHO = {"coordinator": (COORDINATOR,), "job": (JOB,), "both": (COORDINATOR, JOB)}
DEATHS = 4
"""Of a scenario in `make test`."""
REPEATED, ELSEWHERE, ONCE = "repeated", "another scenario's", "not in both recordings"
"""Why there is no death at a moment."""

_REPEATED = re.compile(
    r".*(progress|\.\.\.|commit (purge|remember)).* #\d+|.*chunk #(?!5$)\d+"
    r"|(take office|send SIG[A-Z]+|commit [a-z_, ]+) #\d+"
)
"""Of what is done again and again, one is enough; of a stream, its beginning and its middle."""
_DEPENDS_ON_TIME = re.compile(
    r"commit (?!claimed|finished|archived|recovered|purge|mark_archive_removed)[a-z_, ]+|.*progress.*"
)
"""What is seen on the way depends on when one looks: a run may pass without it."""
_READS = re.compile(r"(GET|HEAD) .*")


@dataclass(frozen=True)
class Cell:
    """One death. It stands for every moment between the same two effects on the world."""

    who: str
    moments: tuple[Moment, ...]

    @property
    def death(self) -> Death:
        return Death(self.moments[0], WHO[self.who])

    @property
    def title(self) -> str:
        _, step, side = self.moments[0]
        return f"kill {self.who} {side} {step!r}"

    def replay(self, scenario: Scenario, store: str) -> str:
        words = ("python", "-m", "tests.chaos.crash_matrix", scenario.name, store, self.who, *self.moments[0])
        return shlex.join(words)


@dataclass(frozen=True)
class Result:
    cell: Cell
    outcome: Outcome


@dataclass(frozen=True)
class Played:
    cells: list[Cell]
    """Every death that there is."""
    results: list[Result]
    """Of those that were chosen."""
    left_out: Mapping[str, int]
    """How many moments, by the reason."""

    @property
    def steps(self) -> set[str]:
        """Those with a death; in `make test` also where the death was not chosen."""
        passed = {result.cell for result in self.results if result.outcome.words == NOT_REACHED}
        return {moment.step for cell in self.cells if cell not in passed for moment in cell.moments}


async def run(lanes: list[Lane], scenario: Scenario, store: str, hashes: dict[str, str]) -> Played:
    """Play the chosen cells, on all lanes at once."""
    recordings = await _recordings(lanes, scenario)
    found = cells(scenario, *recordings)
    waiting = sample(found, DEATHS, f"deaths of {scenario.name} ({store})")
    results: dict[Cell, Outcome] = {}
    queue = list(reversed(waiting))

    async def work(lane: Lane) -> None:
        while queue:
            cell = queue.pop()
            may_pass = depends_on_time(scenario, cell.death.moment.step)
            results[cell] = await play(lane, scenario, cell.death, hashes, may_pass=may_pass)

    await asyncio.gather(*(work(lane) for lane in lanes))
    played = [Result(cell, results[cell]) for cell in waiting]
    return Played(found, played, _left_out(scenario, *recordings))


async def _recordings(lanes: list[Lane], scenario: Scenario) -> tuple[list[Moment], list[Moment]]:
    """Two, to tell what belongs to the operation from what only happened to happen."""
    first, *others = lanes
    if not others:
        return await record(first, scenario), await record(first, scenario)
    one, two = await asyncio.gather(record(first, scenario), record(others[0], scenario))
    return one, two


def cells(scenario: Scenario, first: list[Moment], second: list[Moment]) -> list[Cell]:
    """Return every death, of what both recordings have.

    In `make test` moments that are the same to the world share one, and a step that is another scenario's has
    none. `make test-all` dies at every moment.
    """
    found = []
    for moments in _between_effects(first, set(pairwise(second))):
        chosen = [moment for moment in moments if _why_not(moment, scenario, first, second) is None]
        for who in WHO:
            dying = tuple(moment for moment in chosen if _dies(who, moment))
            found += [Cell(who, alone) for alone in (zip(dying) if EVERYTHING else [dying]) if alone]
    return found


def _dies(who: str, moment: Moment) -> bool:
    """A job that its coordinator's death leaves alone goes on: one side of its steps is enough."""
    if moment.of == COORDINATOR:
        return who == "coordinator"
    return who != "coordinator" or (moment.of == JOB and moment.side == BEFORE)


def _left_out(scenario: Scenario, first: list[Moment], second: list[Moment]) -> Counter[str]:
    moments = {*first, *second}
    return Counter(why for moment in moments if (why := _why_not(moment, scenario, first, second)))


def _between_effects(moments: list[Moment], neighbours: set[tuple[Moment, Moment]]) -> list[list[Moment]]:
    """Moments of one process with no effect between them, its own or another's, are one to the world."""
    groups = [moments[:1]]
    for before, moment in pairwise(moments):
        alone = (before.of == COORDINATOR) == (moment.of == COORDINATOR) and (before, moment) in neighbours
        if alone and (moment.side == BEFORE or _READS.fullmatch(moment.step)):
            groups[-1].append(moment)
        else:
            groups.append([moment])
    return groups


def _why_not(moment: Moment, scenario: Scenario, first: list[Moment], second: list[Moment]) -> str | None:
    """Why nobody dies at this moment; an effect that failed is in no recording to its end."""
    if scenario.only and not EVERYTHING and not re.fullmatch(scenario.only, moment.step):
        return ELSEWHERE
    if _REPEATED.fullmatch(moment.step):
        return REPEATED
    ended = moment._replace(side=AFTER)
    return None if ended in first and ended in second else ONCE


def depends_on_time(scenario: Scenario, step: str) -> bool:
    """Return whether the scenario may end without the step. Any other step has to come."""
    return step not in scenario.must and _DEPENDS_ON_TIME.fullmatch(step) is not None
