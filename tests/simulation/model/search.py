"""Breadth-first search of all states. It reports violations with their shortest history."""

import gc
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.simulation.model.engine import BUDGET, SLOTS, Model, State


class Violation(NamedTuple):
    contract: str
    history: list[str]
    state: State

    def report(self) -> str:
        lines = [f"{number:3}. {line}" for number, line in enumerate(self.history, 1)]
        parts = [f"  {name}: {part.value}" for name, part in zip(SLOTS, self.state, strict=True)]
        return "\n".join([self.contract, *lines, "in the state", *parts])


@dataclass
class Exploration:
    """The result of a search. `digests` are the distinct states without their budgets."""

    states: int
    depth: int
    transitions: int
    complete: bool
    digests: "array[int]"
    violations: list[Violation]
    settled: int = 0


def explore(
    model: Model,
    start: State,
    *,
    limit: int | None = None,
    sample: int = 0,
    settle: Callable[[Model, State], str | None] | None = None,
    violations: int = 1,
) -> Exploration:
    """Visit every reachable state, or the first `limit` of them."""
    gc.disable()
    try:
        return _Search(model, start, limit, sample, settle, violations).run()
    finally:
        gc.enable()


class _Search:
    def __init__(
        self, model: Model, start: State, limit: Any, sample: int, settle: Any, violations: int
    ) -> None:
        self.model, self.limit, self.sample, self.settle = model, limit, sample, settle
        self.wanted = violations
        self.visited = {start: 0}
        self.parents = array("L", [0])
        self.labels: list[str] = ["the initial_state"]
        self.found: list[Violation] = []
        self.start = start
        self.transitions = self.settled = 0

    def run(self) -> Exploration:
        frontier, depth, complete = [self.start], 0, True
        while frontier and len(self.found) < self.wanted:
            if self.limit is not None and len(self.visited) >= self.limit:
                complete = False
                break
            frontier = self._level(frontier)
            depth += 1
        digests = array("Q", {digest_of(state) for state in self.visited})
        return Exploration(
            len(self.visited), depth, self.transitions, complete, digests, self.found, self.settled
        )

    def _level(self, frontier: list[State]) -> list[State]:
        visited, parents, labels, following = self.visited, self.parents, self.labels, []
        for state in frontier:
            origin = visited[state]
            for made, new, _ in self.model.outcomes_of(state):
                self.transitions += 1
                if made.broken is not None:
                    if self._violation(made.broken, origin, made.label, new):
                        return []
                    continue
                if new in visited:
                    continue
                visited[new] = len(parents)
                parents.append(origin)
                labels.append(made.label)
                following.append(new)
                wrong = self.model.broken(new)
                if wrong is None and self.sample and len(parents) % self.sample == 0:
                    self.settled += 1
                    wrong = self.settle(self.model, new)
                if wrong is not None:
                    following.pop()
                    if self._violation(wrong, origin, made.label, new):
                        return []
        return following

    def _violation(self, contract: str, origin: int, label: str, state: State) -> bool:
        name = contract.partition(":")[0]
        if all(item.contract.partition(":")[0] != name for item in self.found):
            self.found.append(Violation(contract, [*self._history(origin), label], state))
        return len(self.found) >= self.wanted

    def _history(self, number: int) -> list[str]:
        lines = []
        while number:
            lines.append(self.labels[number])
            number = self.parents[number]
        return lines[::-1]


def digest_of(state: State) -> int:
    """Return the digest of everything but the budget, so that equal states count once."""
    digest = 0
    for part in state[:BUDGET]:
        digest ^= part.digest
    return digest
