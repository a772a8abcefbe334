"""The matrix of one operation: every step of every process, each side of it, whoever dies there."""

import asyncio
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from tests.chaos.crash_matrix.lane import Lane
from tests.chaos.crash_matrix.play import Death, Outcome, play, record
from tests.chaos.crash_matrix.scenarios import Scenario
from tests.chaos.crash_matrix.steps import AFTER, BEFORE, COORDINATOR, JOB

WHO = {"coordinator": (COORDINATOR,), "job": (JOB,), "both": (COORDINATOR, JOB)}
TRIES = 3
NOT_REACHED = "not reached"

_REPEATED = re.compile(r".*(progress|\.\.\.|commit (purge|remember)).* #\d+|.*chunk #(?!5$)\d+")
"""Of what is done again and again, one is enough; of a stream, its beginning and its middle."""
_DEPENDS_ON_TIME = re.compile(
    r"commit (?!claimed|finished|archived|recovered|purge|condemn)[a-z_, ]+|.*progress.*"
)
"""What is seen on the way depends on when one looks: a run may pass without it."""


@dataclass(frozen=True)
class Cell:
    who: str
    death: Death

    def replay(self, scenario: Scenario, store: str) -> str:
        words = (scenario.name, store, self.who, self.death.of, self.death.step, self.death.side)
        return f"python -m tests.chaos.crash_matrix {shlex.join(words)}"


@dataclass(frozen=True)
class Result:
    cell: Cell
    outcome: Outcome


async def run(lanes: list[Lane], scenario: Scenario, hashes: dict[str, str]) -> list[Result]:
    """Play every cell, on all lanes at once."""
    first, second, *_ = await asyncio.gather(*(record(lane, scenario) for lane in lanes[:2]))
    waiting = cells(scenario, [step for step in dict.fromkeys(first) if step in set(second)])
    results: dict[Cell, Outcome] = {}
    queue = list(reversed(waiting))

    async def work(lane: Lane) -> None:
        while queue:
            cell = queue.pop()
            results[cell] = await play_again(lane, scenario, cell, hashes)

    await asyncio.gather(*(work(lane) for lane in lanes))
    return [Result(cell, results[cell]) for cell in waiting]


def cells(scenario: Scenario, steps: Iterable[tuple[str, str]]) -> list[Cell]:
    found = []
    for of, step in steps:
        if _REPEATED.fullmatch(step) or (scenario.only and not re.fullmatch(scenario.only, step)):
            continue
        for who in ("coordinator",) if of == COORDINATOR else ("job", "both"):
            found += [Cell(who, Death(of, step, side, WHO[who])) for side in (BEFORE, AFTER)]
    return found


async def play_again(lane: Lane, scenario: Scenario, cell: Cell, hashes: dict[str, str]) -> Outcome:
    """A step that depends on time may not come; any other has to."""
    for _ in range(TRIES):
        outcome = await play(lane, scenario, cell.death, hashes)
        if outcome.words != NOT_REACHED:
            return outcome
    if _DEPENDS_ON_TIME.fullmatch(cell.death.step):
        return outcome
    return Outcome(False, f"the step has not come in {TRIES} runs", outcome.seconds)
