"""Bounds on what one network of clients may cost: a token bucket each, and turns in a shared queue."""

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from codehub.domain.problems import TooManyRequests

MAX_NETWORKS: Final = 10_000
FULL_RETRY_SECONDS: Final = 5


class TokenBuckets:
    """Token buckets, one per network, with bounded memory."""

    def __init__(
        self, tokens: int, refill_per_second: float, message: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = float(tokens)
        self._refill_per_second = refill_per_second
        self._message = message
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, network: str, cost: float = 1.0) -> None:
        tokens = self._tokens(network)
        if tokens < cost:
            wait = math.ceil((cost - tokens) / self._refill_per_second)
            raise TooManyRequests(f"{self._message} Try again in {wait} s.", retry_after=wait)
        self._put(network, tokens - cost)

    def give_back(self, network: str, cost: float = 1.0) -> None:
        self._put(network, min(self._most, self._tokens(network) + cost))

    def _tokens(self, network: str) -> float:
        tokens, at = self._buckets.get(network, (self._most, self._clock()))
        return min(self._most, tokens + (self._clock() - at) * self._refill_per_second)

    def _put(self, network: str, tokens: float) -> None:
        self._buckets[network] = (tokens, self._clock())
        self._buckets.move_to_end(network)
        if len(self._buckets) > MAX_NETWORKS:
            self._buckets.popitem(last=False)


class FairQueue:
    """A bounded queue in front of some of the places, in which networks take turns."""

    def __init__(self, places: int, waiting: int, full: str) -> None:
        """`full` is the message for those that find no room in the queue."""
        self._free = places
        self._most_waiting = waiting
        self._full = full
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Those that wait, by network, in the order of their turns."""

    @asynccontextmanager
    async def place(self, network: str) -> AsyncIterator[None]:
        if self._free:
            self._free -= 1
        else:
            await self._wait(network)
        try:
            yield
        finally:
            self._hand_on()

    async def _wait(self, network: str) -> None:
        if sum(map(len, self._queues.values())) >= self._most_waiting:
            self._make_room(network)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(network, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._withdraw(network, turn)
            elif turn.exception() is None:
                self._hand_on()
            raise

    def _make_room(self, network: str) -> None:
        """Reject the newest of the network that has most waiting, unless that is the one that asks."""
        longest = max(self._queues, key=lambda name: len(self._queues[name]))
        if len(self._queues[longest]) <= len(self._queues.get(network, ())) + 1:
            raise self._rejection()
        pushed_out = self._queues[longest].pop()
        if not pushed_out.done():
            pushed_out.set_exception(self._rejection())

    def _hand_on(self) -> None:
        """Give a place to the network whose turn it is."""
        while self._queues:
            network, queue = self._queues.popitem(last=False)
            turn = queue.popleft()
            if queue:
                self._queues[network] = queue
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def _withdraw(self, network: str, turn: "asyncio.Future[None]") -> None:
        queue = self._queues.get(network, deque())
        if turn in queue:
            queue.remove(turn)
        if not queue:
            self._queues.pop(network, None)

    def _rejection(self) -> TooManyRequests:
        return TooManyRequests(self._full, retry_after=FULL_RETRY_SECONDS)
