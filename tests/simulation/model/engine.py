"""Engine of the model: rules, checks and states, with a cache of the outcomes of each rule.

A rule lists the parts of a state that it reads, and may read nothing else. Equal parts give equal
outcomes, which are cached. The cost of an outcome is taken from the budget of the state.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from operator import itemgetter
from typing import Any, NamedTuple

from tests.simulation.model.names import fresh_names, mask_of, renamed, renaming

SLOTS = (
    "row",
    "expected",
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
"""Flags for rules: a leader holds the lock; the deletion of a volume is decided."""


class Part:
    """One interned part of a state: equal values are the same object."""

    __slots__ = ("at", "digest", "flags", "mask", "value")

    def __init__(self, slot: str, value: Any) -> None:
        self.value = value
        self.mask = mask_of(value)
        self.flags = _flags(slot, value)
        self.at = value.at if slot in ("lead", "stale") and value is not None else None
        encoded = repr((slot, value)).encode()
        self.digest = int.from_bytes(blake2b(encoded, digest_size=8).digest())


State = tuple[Part, ...]


class Step(NamedTuple):
    """One outcome of a rule: its changes, its cost, and the contract that it breaks, if any."""

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
        """Return whether the leader that the rule concerns is at the right point."""
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
    """Register a kind of step.

    `leaders`: once for the current leader and once for the stale one, as `me` and `other`. `fresh`:
    it may need new names. `flags`: it reads HELD or DELETING. `commits`: it changes the row in the
    database. `progress`: it happens without any disturbance, the lowest number first. `at`: only
    when the leader is at this point. `needs`: only in explorations with one of these in the budget.
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
    """Register a contract that holds in every state: it returns what is wrong, or None."""

    def register(call: Callable[..., str | None]) -> Callable[..., str | None]:
        CHECKS.append(Check(call, tuple(reads.split()), flags))
        return call

    return register


Hook = Callable[[str, Any, Any, Any], Any]


@dataclass
class Model:
    """Rules and checks with their caches, created for one exploration."""

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
        self.settled_states: set[State] = set()
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
                left = budget if made.cost is None else self._spent(budget, made.cost)
                if left is None:
                    continue
                new = list(state)
                new[BUDGET] = left
                for slot, part in changes:
                    new[slot] = part
                if item.commits and new[ROW] is not state[ROW]:
                    self._commit(new, state, changes)
                yield made, self.canonical(tuple(new)), item

    def undisturbed_step(self, state: State) -> tuple[str, State] | None:
        """Return the next step without disturbances: the first that applies, by `progress`."""
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
            values.append(fresh_names(mask))
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
        """Update the leaders and the TTL runner that had read the row."""
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
            names = self._maps[mask] = renaming(mask)
        if names is None:
            return state
        return tuple(self._rename(slot, part, mask, names) for slot, part in enumerate(state))

    def _rename(self, slot: int, part: Part, mask: int, names: dict[type, dict[int, int]]) -> Part:
        if not part.mask:
            return part
        found = self._renamed.get((slot, part, mask))
        if found is None:
            found = self._renamed[(slot, part, mask)] = self.part(slot, renamed(part.value, names))
        return found


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


def _flags(slot: str, value: Any) -> int:
    if slot in ("lead", "stale") and value is not None:
        deletes = value.act is not None and value.act.kind == "delete"
        return (HELD if value.at == "held" else 0) | (DELETING if deletes else 0)
    if slot == "jobs":
        return DELETING if any(job.kind == "delete" and job.is_running for job in value) else 0
    return 0
