"""Who may try a password now.

A sign-in costs an Argon2 computation, which takes 64 MB and a core for a moment, and some database calls.
A flood of them must neither exhaust the machine nor hold up people who have signed in before.
"""

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from codehub.bus.known_addresses import KnownAddresses
from codehub.domain.audit import network_of
from codehub.domain.problems import TooManyRequests

NEW_AT_ONCE: Final = 2
NEW_WAITING: Final = 16
"""For networks that nobody has signed in from."""
KNOWN_AT_ONCE: Final = 2
KNOWN_WAITING: Final = 64

FAILURES: Final = 20
REFILL_PER_SECOND: Final = 0.5
KNOWN_COST: Final = 0.2
"""Tokens of a sign-in from a known network, which may be that of a whole office."""
MAX_NETWORKS: Final = 10_000


class Allowance:
    """Token buckets, one per network, with bounded memory. A sign-in that succeeds gets its tokens back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, network: str, cost: float = 1.0) -> None:
        tokens = self._tokens(network)
        if tokens < cost:
            wait = math.ceil((cost - tokens) / REFILL_PER_SECOND)
            raise TooManyRequests(
                f"Too many sign-ins from your network have failed or are under way. Try again in {wait} s.",
                retry_after=wait,
            )
        self._put(network, tokens - cost)

    def give_back(self, network: str, cost: float = 1.0) -> None:
        self._put(network, min(FAILURES, self._tokens(network) + cost))

    def _tokens(self, network: str) -> float:
        tokens, at = self._buckets.get(network, (float(FAILURES), self._clock()))
        return min(FAILURES, tokens + (self._clock() - at) * REFILL_PER_SECOND)

    def _put(self, network: str, tokens: float) -> None:
        self._buckets[network] = (tokens, self._clock())
        self._buckets.move_to_end(network)
        if len(self._buckets) > MAX_NETWORKS:
            self._buckets.popitem(last=False)


class Share:
    """A bounded queue in front of some of the places, in which networks take turns."""

    def __init__(self, places: int, waiting: int) -> None:
        self._free = places
        self._most_waiting = waiting
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
            raise _full()
        pushed_out = self._queues[longest].pop()
        if not pushed_out.done():
            pushed_out.set_exception(_full())

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


def _full() -> TooManyRequests:
    return TooManyRequests("Too many people are signing in at this moment. Try again shortly.", retry_after=5)


class SignInLane:
    """Admission of sign-ins: an allowance per network, then a place in the share of its kind."""

    def __init__(self, known: KnownAddresses, limited: Callable[[str], None]) -> None:
        self._known = known
        self._limited = limited
        self._allowance = Allowance()
        self._new = Share(NEW_AT_ONCE, NEW_WAITING)
        self._old = Share(KNOWN_AT_ONCE, KNOWN_WAITING)

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        """Hold a place while a password is checked; leaving without an error is a success."""
        network = network_of(address) or "unknown"
        is_known = network in self._known
        cost = KNOWN_COST if is_known else 1.0
        try:
            self._allowance.take(network, cost)
        except TooManyRequests:
            self._limited("sign_in_address")
            raise
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context((self._old if is_known else self._new).place(network))
            except TooManyRequests:
                self._limited("sign_in_lane")
                self._allowance.give_back(network, cost)  # nothing was tried
                raise
            yield
        self._allowance.give_back(network, cost)
        await self._known.remember(network)
