"""Limit on database lookups of sessions, per network, for those that find nothing.

Anyone can send a cookie with an invented session, and each one costs a query.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from codehub.domain.audit import network_of
from codehub.domain.problems import TooManyRequests
from codehub.rate_limits import FairQueue, TokenBuckets

FAILED_LOOKUPS: Final = 200
REFILL_PER_SECOND: Final = 5.0
"""Failed lookups of one network: enough for an office whose sessions expired overnight."""
UNKNOWN_AT_ONCE: Final = 4
"""In all networks together, so that most database connections remain free for known sessions."""
UNKNOWN_WAITING: Final = 512
MAX_FOUND: Final = 20_000
ALLOWANCE_USED: Final = (
    "Too many requests from your network came with a session or token that does not exist."
)
QUEUE_FULL: Final = "Too many sessions and tokens are being looked up at this moment. Try again shortly."

Found = TypeVar("Found")


class SessionLookupLimit:
    """Admission control for lookups.

    A session that was found before neither waits nor costs a token.
    """

    def __init__(self, on_reject: Callable[[], object] = lambda: None) -> None:
        """`on_reject` is called for each lookup that is rejected."""
        self._on_reject = on_reject
        self._found: OrderedDict[bytes, None] = OrderedDict()
        self._buckets = TokenBuckets(FAILED_LOOKUPS, REFILL_PER_SECOND, ALLOWANCE_USED)
        self._queue = FairQueue(UNKNOWN_AT_ONCE, UNKNOWN_WAITING, QUEUE_FULL)

    async def find(
        self, id_hash: bytes, address: str, look_up: Callable[[], Awaitable[Found | None]]
    ) -> Found | None:
        """Return what `look_up` finds, or raise TooManyRequests."""
        if id_hash in self._found:
            session = await look_up()
        else:
            session = await self._find_unknown(network_of(address) or "unknown", look_up)
        if session is None:
            self._found.pop(id_hash, None)
        else:
            self.remember(id_hash)
        return session

    def remember(self, id_hash: bytes) -> None:
        self._found[id_hash] = None
        self._found.move_to_end(id_hash)
        if len(self._found) > MAX_FOUND:
            self._found.popitem(last=False)

    async def _find_unknown(
        self, network: str, look_up: Callable[[], Awaitable[Found | None]]
    ) -> Found | None:
        """Look up a session for a token.

        A cancelled lookup costs it too: clients can cancel at will.
        """
        try:
            self._buckets.take(network)
        except TooManyRequests:
            self._on_reject()
            raise
        try:
            async with self._queue.slot(network):
                session = await look_up()
        except Exception as error:
            self._buckets.refund(network)
            if isinstance(error, TooManyRequests):
                self._on_reject()
            raise
        if session is not None:
            self._buckets.refund(network)
        return session
