"""The exploration: breadth-first over all states, each rule computed once for each projection it depends on.

A rule names the parts of a state that it reads; for equal parts it has equal outcomes, so that they are remembered. A rule may
not look at anything else, and what an outcome costs is taken from the state's budget.
"""

import gc
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from operator import itemgetter
from typing import Any, NamedTuple

from tests.simulation.model.parts import Arc, Op, Stamp

SLOTS = (
    "row",
    "truth",
    "container",
    "disk",
    "store",
    "jobs",
    "lead",
    "stale",
    "activity",
    "ttl",
    "gc",
    "budget",
)
INDEX = {name: number for number, name in enumerate(SLOTS)}
ROW, LEAD, STALE, JOBS, BUDGET = (INDEX[name] for name in ("row", "lead", "stale", "jobs", "budget"))

HELD, DELETING = 1, 2
"""What a rule may ask of all leaders and jobs together: is the workspace's lock held by a leader, is a volume's deletion decided."""

_FAMILY = {Op: 0, Arc: 16, Stamp: 32}
_BITS = 0xFFFF


class Part:
    """One part of a state, interned: the same value is the same object."""

    __slots__ = ("at", "digest", "flags", "mask", "value")

    def __init__(self, slot: str, value: Any) -> None:
        self.value = value
        self.mask = _mask(value)
        self.flags = _flags(slot, value)
        self.at = value.at if slot in ("lead", "stale") and value is not None else None
        told = repr((slot, value)).encode()
        self.digest = int.from_bytes(blake2b(told, digest_size=8).digest())


State = tuple[Part, ...]


class Step(NamedTuple):
    """One outcome of a rule: what changes, what it costs, and which contract it breaks, if any."""

    label: str
    changes: dict[str, Any]
    cost: str | None = None
    broken: str | None = None


def step(label: str, cost: str | None = None, broken: str | None = None, **changes: Any) -> Step:
    return Step(label, changes, cost, broken)


@dataclass
class Rule:
    call: Callable[..., Iterator[Step]]
    reads: tuple[str, ...]
    names: dict[str, str]
    fresh: bool
    flags: bool
    commits: bool
    progress: int | None
    at: str | None
    needs: tuple[str, ...]

    def applies(self, lead_at: str | None, stale_at: str | None) -> bool:
        """Whether the leader that it is about is where it must be."""
        return self.at is None or self.at == (stale_at if self.names.get("me") == "stale" else lead_at)


@dataclass
class Check:
    call: Callable[..., str | None]
    reads: tuple[str, ...]
    flags: bool


RULES: list[Rule] = []
CHECKS: list[Check] = []


def rule(
    reads: str,
    *,
    leaders: bool = False,
    fresh: bool = False,
    flags: bool = False,
    commits: bool = False,
    progress: int | None = None,
    at: str | None = None,
    needs: str = "",
) -> Callable[[Callable[..., Iterator[Step]]], Callable[..., Iterator[Step]]]:
    """A kind of step. `leaders`: once for the current leader and once for the stale one, as `me` and `other`.

    `fresh`: it may need new names. `flags`: it asks for HELD or DELETING. `commits`: it changes the row in the database. `progress`: it
    happens by itself in good weather, the lowest number first. `at`: only when the leader is there. `needs`: not at
    all when an exploration has none of these to spend.
    """

    def register(call: Callable[..., Iterator[Step]]) -> Callable[..., Iterator[Step]]:
        sides = ({"me": "lead", "other": "stale"}, {"me": "stale", "other": "lead"}) if leaders else ({},)
        for names in sides:
            slots = tuple(names.get(name, name) for name in reads.split())
            late = names.get("me") == "stale"
            spent = ("hang",) if late else tuple(needs.split())
            order = 0 if late and progress is not None else progress
            RULES.append(Rule(call, slots, names, fresh, flags, commits, order, at, spent))
        return call

    return register


def check(
    reads: str, *, flags: bool = False
) -> Callable[[Callable[..., str | None]], Callable[..., str | None]]:
    """A contract that holds in every state: it returns what is wrong, or None."""

    def register(call: Callable[..., str | None]) -> Callable[..., str | None]:
        CHECKS.append(Check(call, tuple(reads.split()), flags))
        return call

    return register


class Violation(NamedTuple):
    contract: str
    history: list[str]
    state: State

    def told(self) -> str:
        lines = [f"{number:3}. {line}" for number, line in enumerate(self.history, 1)]
        parts = [f"  {name}: {part.value}" for name, part in zip(SLOTS, self.state, strict=True)]
        return "\n".join([self.contract, *lines, "in the state", *parts])


Hook = Callable[[str, Any, Any, Any], Any]


@dataclass
class Model:
    """Rules and checks with their memory; made anew for each exploration, so that nothing leaks."""

    spend: Callable[[Any, str], Any]
    on_commit: Hook
    budget: Any
    checks: list[Check] = field(default_factory=lambda: CHECKS)

    def __post_init__(self) -> None:
        self._parts: list[dict[Any, Part]] = [{} for _ in SLOTS]
        self._renamed: dict[tuple[int, Part, int], Part] = {}
        self._maps: dict[int, dict[type, dict[int, int]] | None] = {}
        self._budgets: dict[tuple[Part, str], Part | None] = {}
        self._commits: dict[tuple[int, Part, Part, Part], Part] = {}
        useful = [
            item for item in RULES if not item.needs or any(getattr(self.budget, n) for n in item.needs)
        ]
        self._rules = [(_getter(item.reads), {}, item) for item in useful]
        self.resting: set[State] = set()
        self._applicable: dict[tuple[str | None, str | None], list[Any]] = {}
        self._checks = [(_getter(item.reads), {}, item) for item in self.checks]

    def part(self, slot: int, value: Any) -> Part:
        found = self._parts[slot].get(value)
        if found is None:
            found = self._parts[slot][value] = Part(SLOTS[slot], value)
        return found

    def state(self, values: dict[str, Any]) -> State:
        return self.canonical(tuple(self.part(INDEX[name], values[name]) for name in SLOTS))

    def _rules_at(self, state: State) -> list[Any]:
        where = (state[LEAD].at, state[STALE].at)
        found = self._applicable.get(where)
        if found is None:
            found = self._applicable[where] = [rule for rule in self._rules if rule[2].applies(*where)]
        return found

    def outcomes_of(self, state: State) -> Iterator[tuple[Step, State, Rule]]:
        mask = _union(state)
        flags = state[LEAD].flags | state[STALE].flags | state[JOBS].flags
        budget = state[BUDGET]
        for get, memory, item in self._rules_at(state):
            key = get(state)
            if item.fresh:
                key = (*key, mask)
            if item.flags:
                key = (*key, flags)
            outcomes = memory.get(key)
            if outcomes is None:
                outcomes = memory[key] = self._outcomes(item, state, mask, flags)
            for made, changes in outcomes:
                new = list(state)
                for slot, part in changes:
                    new[slot] = part
                if made.cost is not None:
                    left = self._spent(budget, made.cost)
                    if left is None:
                        continue
                    new[BUDGET] = left
                if item.commits and new[ROW] is not state[ROW]:
                    self._commit(new, state, changes)
                yield made, self.canonical(tuple(new)), item

    def good_step(self, state: State) -> tuple[str, State] | None:
        """What happens next when nothing disturbs: the first that can, in the order of `progress`."""
        best: tuple[int, Step, State] | None = None
        for made, new, item in self.outcomes_of(state):
            if item.progress is None or made.cost is not None or new == state:
                continue
            if best is None or item.progress < best[0]:
                best = (item.progress, made, new)
        return None if best is None else (best[1].label, best[2])

    def broken(self, state: State) -> str | None:
        flags = state[LEAD].flags | state[STALE].flags | state[JOBS].flags
        for get, memory, item in self._checks:
            key = get(state)
            if item.flags:
                key = (*key, flags)
            if key not in memory:
                values = [state[INDEX[name]].value for name in item.reads]
                memory[key] = item.call(*values, flags) if item.flags else item.call(*values)
            if memory[key] is not None:
                return str(memory[key])
        return None

    def _outcomes(self, item: Rule, state: State, mask: int, flags: int) -> list[Any]:
        values = [state[INDEX[name]].value for name in item.reads]
        if item.fresh:
            values.append((Op((mask & _BITS).bit_length() + 1), Arc((mask >> 16 & _BITS).bit_length() + 1)))
        if item.flags:
            values.append(flags)
        side = [item.names["me"]] if item.names else []
        return [
            (
                made,
                [
                    (INDEX[slot], self.part(INDEX[slot], value))
                    for name, value in made.changes.items()
                    for slot in (item.names.get(name, name),)
                ],
            )
            for made in item.call(*side, *values)
        ]

    def _spent(self, budget: Part, cost: str) -> Part | None:
        key = (budget, cost)
        if key not in self._budgets:
            left = self.spend(budget.value, cost)
            self._budgets[key] = None if left is None else self.part(BUDGET, left)
        return self._budgets[key]

    def _commit(self, new: list[Part], old: State, changes: list[tuple[int, Part]]) -> None:
        """Whoever had read the row now has an old one."""
        written = {slot for slot, _ in changes}
        for name in ("lead", "stale", "ttl"):
            slot = INDEX[name]
            if slot in written:
                continue
            key = (slot, new[slot], old[ROW], new[ROW])
            found = self._commits.get(key)
            if found is None:
                value = self.on_commit(name, new[slot].value, old[ROW].value, new[ROW].value)
                found = self._commits[key] = self.part(slot, value)
            new[slot] = found

    def canonical(self, state: State) -> State:
        mask = _union(state)
        names = self._maps.get(mask, False)
        if names is False:
            names = self._maps[mask] = _renaming(mask)
        if names is None:
            return state
        return tuple(self._rename(slot, part, mask, names) for slot, part in enumerate(state))

    def _rename(self, slot: int, part: Part, mask: int, names: dict[type, dict[int, int]]) -> Part:
        if not part.mask:
            return part
        found = self._renamed.get((slot, part, mask))
        if found is None:
            found = self._renamed[(slot, part, mask)] = self.part(slot, _renamed(part.value, names))
        return found


@dataclass
class Exploration:
    """What was found."""

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
    """Visit every state that can be reached, or the first `limit` of them."""
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
        self.labels: list[str] = ["the beginning"]
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
        digests = array("Q", (_digest(state) for state in self.visited))
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


def _getter(names: tuple[str, ...]) -> Callable[[State], tuple[Part, ...]]:
    slots = [INDEX[name] for name in names]
    if len(slots) == 1:
        (slot,) = slots
        return lambda state: (state[slot],)
    return itemgetter(*slots)


def _union(state: State) -> int:
    a, b, c, d, e, f, g, h, i, j, k, _ = state
    return (
        a.mask | b.mask | c.mask | d.mask | e.mask | f.mask | g.mask | h.mask | i.mask | j.mask | k.mask
    )  # fmt: skip


def _digest(state: State) -> int:
    """Of everything but the budget: the same world reached with more or less left to spend is one."""
    digest = 0
    for part in state[:BUDGET]:
        digest ^= part.digest
    return digest


def _mask(value: Any) -> int:
    shift = _FAMILY.get(type(value))
    if shift is not None:
        assert 1 <= value <= 16, f"too many names: {value!r}"
        return 1 << (shift + value - 1)
    mask = 0
    if isinstance(value, tuple):
        for item in value:
            mask |= _mask(item)
    return mask


def _flags(slot: str, value: Any) -> int:
    if slot in ("lead", "stale") and value is not None:
        deletes = value.act is not None and value.act.kind == "delete"
        return (HELD if value.at == "held" else 0) | (DELETING if deletes else 0)
    if slot == "jobs":
        return DELETING if any(job.kind == "delete" and job.is_running for job in value) else 0
    return 0


def _renaming(mask: int) -> dict[type, dict[int, int]] | None:
    """How to close the gaps that names which nobody uses any more have left; None when there are none."""
    names, gaps = {}, False
    for family, shift in _FAMILY.items():
        used = [number + 1 for number in range(16) if mask >> shift & 1 << number]
        names[family] = {old: family(new) for new, old in enumerate(used, 1)}
        gaps = gaps or used != list(range(1, len(used) + 1))
    return names if gaps else None


def _renamed(value: Any, names: dict[type, dict[int, int]]) -> Any:
    family = names.get(type(value))
    if family is not None:
        return family[value]
    if isinstance(value, tuple):
        items = [_renamed(item, names) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value
