"""Fair queue of connections that have more to do than one callback may (ADR 0024)."""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from time import perf_counter
from typing import Final

TURN_SECONDS: Final = 0.000_01
"""Deferred work of one turn of the loop. A turn exceeds this by one step at most.

With 50 us, a flood made others wait 30 to 60 us for half of their turns, with 20 us 20 to 35 us.
"""
COSTLY_A_TICK: Final = 16
"""Costly callbacks of one address or upstream beyond which all it sends goes through the queue.

Half of them are forgotten with each tick of the gateway.
"""
WINDOW: Final = 16 << 10
"""How much of what was kept is copied for one step."""


class TurnQueue:
    """Round-robin queue. Groups take turns, and so do the connections of a group.

    Each turn of the loop does a little of what waits here and then polls its sockets. Connections that send
    little are never in the queue: they are served in between.
    """

    def __init__(self) -> None:
        self._groups: dict[Hashable, deque[Callable[[], None]]] = {}
        self._is_scheduled = False

    def add(self, group: Hashable, go_on: Callable[[], None]) -> None:
        """Call `go_on` once, in a later turn of the loop."""
        self._groups.setdefault(group, deque()).append(go_on)
        self._schedule()

    def _schedule(self) -> None:
        if self._groups and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        ends_at = perf_counter() + TURN_SECONDS
        try:
            self._take_step()
            while self._groups and perf_counter() < ends_at:
                self._take_step()
        finally:
            self._is_scheduled = False
            self._schedule()

    def _take_step(self) -> None:
        group = next(iter(self._groups))
        waiting = self._groups.pop(group)
        go_on = waiting.popleft()
        if waiting:
            self._groups[group] = waiting
        go_on()
