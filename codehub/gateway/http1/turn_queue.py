"""Fair queue of connections that have more work than one callback may do (ADR 0024)."""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from time import perf_counter
from typing import Final

TURN_SECONDS: Final = 0.000_01
"""How long one turn of the loop works on the queue. A turn exceeds this by one step at most.

With 50 us, a flood made others wait 30 to 60 us for half of their turns, with 20 us 20 to 35 us.
"""
REST: Final = 2
"""How long the queue rests after a step that took longer than a turn, in times of that step.

A step is one request or response head at least, which may take 30 turns. With rests, others wait for such
a step a third of the time at most.
"""
LONGEST_REST: Final = 0.01
"""In seconds. The machine may have stopped during the step."""
COSTLY_A_TICK: Final = 16
"""Costly callbacks after which all data of an address or upstream goes through the queue.

Each tick of the gateway halves the count.
"""
WINDOW: Final = 16 << 10
"""How many buffered bytes one step copies."""


class TurnQueue:
    """Round-robin queue. Groups take turns, and so do the connections of a group.

    Each turn of the loop does a little of the queued work and then polls its sockets. Connections that
    send little are never in the queue: they are served in between.
    """

    def __init__(self) -> None:
        self._groups: dict[Hashable, deque[Callable[[], None]]] = {}
        self._is_scheduled = False
        self._ends_at = 0.0
        self._rests_until = 0.0

    def add(self, group: Hashable, step: Callable[[], None]) -> None:
        """Call `step` once, in a later turn of the loop."""
        self._groups.setdefault(group, deque()).append(step)
        self._schedule()

    def end_turn(self) -> None:
        """Take no further step in this turn, because the loop carries out the work of this one later."""
        self._ends_at = 0.0

    def _schedule(self) -> None:
        if self._groups and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        begins_at = perf_counter()
        try:
            if self._groups and begins_at >= self._rests_until:
                self._take_steps(begins_at)
        finally:
            self._is_scheduled = False
            self._schedule()

    def _take_steps(self, begins_at: float) -> None:
        self._ends_at = begins_at + TURN_SECONDS
        self._take_step()
        now = perf_counter()
        while self._groups and now < self._ends_at:
            self._take_step()
            now = perf_counter()
        if now - begins_at > 2 * TURN_SECONDS:
            self._rests_until = now + min(REST * (now - begins_at), LONGEST_REST)

    def _take_step(self) -> None:
        group = next(iter(self._groups))
        waiting = self._groups.pop(group)
        step = waiting.popleft()
        if waiting:
            self._groups[group] = waiting
        step()
