"""Who may try a password now.

A sign-in costs an Argon2 computation, which takes 64 MB and a core for a moment, and some database calls.
A flood of them must neither exhaust the machine nor hold up people who have signed in before.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from codehub.bus.known_addresses import KnownAddresses
from codehub.domain.audit import network_of
from codehub.domain.problems import TooManyRequests
from codehub.network_limits import TokenBuckets, FairQueue

NEW_AT_ONCE: Final = 2
NEW_WAITING: Final = 16
"""For networks that nobody has signed in from."""
KNOWN_AT_ONCE: Final = 2
KNOWN_WAITING: Final = 64

FAILURES: Final = 20
REFILL_PER_SECOND: Final = 0.5
KNOWN_COST: Final = 0.2
"""Tokens of a sign-in from a known network, which may be that of a whole office."""
ALLOWANCE_USED: Final = "Too many sign-ins from your network have failed or are under way."
QUEUE_FULL: Final = "Too many people are signing in at this moment. Try again shortly."


class SignInLane:
    """Admission of sign-ins: an allowance per network, then a place in the share of its kind.

    A sign-in that succeeds gets its tokens back.
    """

    def __init__(self, known: KnownAddresses, limited: Callable[[str], None]) -> None:
        self._known = known
        self._limited = limited
        self._allowance = TokenBuckets(FAILURES, REFILL_PER_SECOND, ALLOWANCE_USED)
        self._new = FairQueue(NEW_AT_ONCE, NEW_WAITING, QUEUE_FULL)
        self._old = FairQueue(KNOWN_AT_ONCE, KNOWN_WAITING, QUEUE_FULL)

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
