"""Limits per network of clients: token buckets, and a fair queue."""

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
        self._capacity = float(tokens)
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

    def refund(self, network: str, cost: float = 1.0) -> None:
        self._put(network, min(self._capacity, self._tokens(network) + cost))

    def _tokens(self, network: str) -> float:
        tokens, at = self._buckets.get(network, (self._capacity, self._clock()))
        return min(self._capacity, tokens + (self._clock() - at) * self._refill_per_second)

    def _put(self, network: str, tokens: float) -> None:
        self._buckets[network] = (tokens, self._clock())
        self._buckets.move_to_end(network)
        if len(self._buckets) > MAX_NETWORKS:
            self._buckets.popitem(last=False)


class FairQueue:
    """Semaphore with a bounded queue, in which networks take turns (round robin)."""

    def __init__(self, slots: int, max_waiting: int, full_message: str) -> None:
        """`full_message` is the error when the queue is full."""
        self._free = slots
        self._max_waiting = max_waiting
        self._full_message = full_message
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Waiters by network. The order of the networks is that of their turns."""

    @asynccontextmanager
    async def slot(self, network: str) -> AsyncIterator[None]:
        if self._free:
            self._free -= 1
        else:
            await self._wait(network)
        try:
            yield
        finally:
            self._release()

    async def _wait(self, network: str) -> None:
        if sum(map(len, self._queues.values())) >= self._max_waiting:
            self._make_room(network)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(network, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._withdraw(network, turn)
            elif turn.exception() is None:
                self._release()
            raise

    def _make_room(self, network: str) -> None:
        """Reject the newest waiter of the network with most waiters, which may be the caller."""
        longest = max(self._queues, key=lambda name: len(self._queues[name]))
        if len(self._queues[longest]) <= len(self._queues.get(network, ())) + 1:
            raise self._rejection()
        rejected = self._queues[longest].pop()
        if not rejected.done():
            rejected.set_exception(self._rejection())

    def _release(self) -> None:
        """Give the slot to the network whose turn it is."""
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
        return TooManyRequests(self._full_message, retry_after=FULL_RETRY_SECONDS)
