"""The matrix of one operation: every step of every process, each side of it, whoever dies there."""

import asyncio
import os
import re
import shlex
from dataclasses import dataclass
from itertools import pairwise

from tests.chaos.crash_matrix.lane import Lane
from tests.chaos.crash_matrix.play import Death, Outcome, play, record
from tests.chaos.crash_matrix.scenarios import Scenario
from tests.chaos.crash_matrix.steps import AFTER, BEFORE, COORDINATOR, JOB, Moment

WHO = {"coordinator": (COORDINATOR,), "job": (JOB,), "both": (COORDINATOR, JOB)}
TRIES = 3
NOT_REACHED = "not reached"
FULL = "CRASH_MATRIX_FULL" in os.environ
"""Die at every moment by itself, also where two are the same to the world or a step is another scenario's."""

_REPEATED = re.compile(r".*(progress|\.\.\.|commit (purge|remember)).* #\d+|.*chunk #(?!5$)\d+")
"""Of what is done again and again, one is enough; of a stream, its beginning and its middle."""
_DEPENDS_ON_TIME = re.compile(
    r"commit (?!claimed|finished|archived|recovered|purge|condemn)[a-z_, ]+|.*progress.*"
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

    def replay(self, scenario: Scenario, store: str) -> str:
        words = ("python", "-m", "tests.chaos.crash_matrix", scenario.name, store, self.who, *self.moments[0])
        return shlex.join(words)


@dataclass(frozen=True)
class Result:
    cell: Cell
    outcome: Outcome


async def run(lanes: list[Lane], scenario: Scenario, hashes: dict[str, str]) -> list[Result]:
    """Play every cell, on all lanes at once."""
    waiting = cells(scenario, *await _recordings(lanes, scenario))
    results: dict[Cell, Outcome] = {}
    queue = list(reversed(waiting))

    async def work(lane: Lane) -> None:
        while queue:
            cell = queue.pop()
            results[cell] = await play_again(lane, scenario, cell, hashes)

    await asyncio.gather(*(work(lane) for lane in lanes))
    return [Result(cell, results[cell]) for cell in waiting]


async def _recordings(lanes: list[Lane], scenario: Scenario) -> tuple[list[Moment], list[Moment]]:
    """Two, to tell what belongs to the operation from what only happened to happen."""
    first, *others = lanes
    if not others:
        return await record(first, scenario), await record(first, scenario)
    one, two = await asyncio.gather(record(first, scenario), record(others[0], scenario))
    return one, two


def cells(scenario: Scenario, first: list[Moment], second: list[Moment]) -> list[Cell]:
    """Every death to die, of what both recordings have."""
    found = []
    for moments in _between_effects(first, set(pairwise(second))):
        chosen = tuple(moment for moment in moments if _is_chosen(moment, scenario, first, second))
        for who in ("coordinator",) if moments[0].of == COORDINATOR else ("job", "both"):
            found += [Cell(who, alone) for alone in (zip(chosen) if FULL else [chosen]) if alone]
    return found


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


def _is_chosen(moment: Moment, scenario: Scenario, first: list[Moment], second: list[Moment]) -> bool:
    """Not what is repeated, nor belongs to another scenario, nor an effect that failed."""
    elsewhere = scenario.only and not FULL and not re.fullmatch(scenario.only, moment.step)
    if elsewhere or _REPEATED.fullmatch(moment.step):
        return False
    ended = moment._replace(side=AFTER)
    return ended in first and ended in second


async def play_again(lane: Lane, scenario: Scenario, cell: Cell, hashes: dict[str, str]) -> Outcome:
    """A step that depends on time may not come; any other has to."""
    for _ in range(TRIES):
        outcome = await play(lane, scenario, cell.death, hashes)
        if outcome.words != NOT_REACHED:
            return outcome
    if _DEPENDS_ON_TIME.fullmatch(cell.death.moment.step):
        return outcome
    return Outcome(False, f"the step has not come in {TRIES} runs", outcome.seconds)
