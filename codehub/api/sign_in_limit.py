"""Admission of sign-ins.

A sign-in costs an Argon2 computation (64 MB and a core for a moment) and some database calls. A flood
of them must neither exhaust the machine nor delay users who have signed in before.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from codehub.bus.known_networks import KnownNetworks
from codehub.domain.audit import network_of
from codehub.domain.problems import TooManyRequests
from codehub.rate_limits import FairQueue, TokenBuckets

NEW_AT_ONCE: Final = 2
NEW_WAITING: Final = 16
"""For networks from which no user has signed in."""
KNOWN_AT_ONCE: Final = 2
KNOWN_WAITING: Final = 64

FAILURES: Final = 20
REFILL_PER_SECOND: Final = 0.5
KNOWN_COST: Final = 0.2
"""Tokens per sign-in from a known network, which a whole office may share."""
ALLOWANCE_USED: Final = "Too many sign-ins from your network have failed or are in progress."
QUEUE_FULL: Final = "Too many people are signing in at this moment. Try again shortly."


class SignInLimit:
    """Token bucket per network, then a bounded queue: one for known networks, one for new ones.

    A successful sign-in gets its tokens back.
    """

    def __init__(self, known: KnownNetworks, on_reject: Callable[[str], None]) -> None:
        self._known = known
        self._on_reject = on_reject
        self._buckets = TokenBuckets(FAILURES, REFILL_PER_SECOND, ALLOWANCE_USED)
        self._new_queue = FairQueue(NEW_AT_ONCE, NEW_WAITING, QUEUE_FULL)
        self._known_queue = FairQueue(KNOWN_AT_ONCE, KNOWN_WAITING, QUEUE_FULL)

    @asynccontextmanager
    async def admit(self, address: str) -> AsyncIterator[None]:
        """Admit one password check. The password was right if the block raises nothing."""
        network = network_of(address) or "unknown"
        is_known = network in self._known
        cost = KNOWN_COST if is_known else 1.0
        try:
            self._buckets.take(network, cost)
        except TooManyRequests:
            self._on_reject("sign_in_address")
            raise
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(
                    (self._known_queue if is_known else self._new_queue).slot(network)
                )
            except TooManyRequests:
                self._on_reject("sign_in_lane")
                self._buckets.refund(network, cost)  # no password was checked
                raise
            yield
        self._buckets.refund(network, cost)

    async def remember(self, user_id: str, address: str) -> None:
        """Count the network of this address as known: the user has signed in from it."""
        await self._known.remember(user_id, network_of(address) or "unknown")
