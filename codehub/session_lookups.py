"""Database look-ups of sessions, bounded per network of the client while they find nothing.

Any cookie may claim to be a session, and only the database shows which are.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from codehub.domain.audit import network_of
from codehub.domain.problems import TooManyRequests
from codehub.network_limits import TokenBuckets, FairQueue

NOT_FOUND: Final = 200
REFILL_PER_SECOND: Final = 5.0
"""Look-ups of one network that find no session: enough for an office whose sessions ended overnight."""
UNKNOWN_AT_ONCE: Final = 4
"""Of all networks together, so that most database connections stay free for living sessions."""
UNKNOWN_WAITING: Final = 512
MAX_FOUND: Final = 20_000
ALLOWANCE_USED: Final = "Too many requests from your network came with a session that does not exist."
QUEUE_FULL: Final = "Too many sessions are being looked up at this moment. Try again shortly."

Found = TypeVar("Found")


class SessionLookups:
    """Admission of look-ups. A session that was found before neither waits nor costs its network a token."""

    def __init__(self, limited: Callable[[], object] = lambda: None) -> None:
        """`limited` is called for each look-up that is rejected."""
        self._limited = limited
        self._found: OrderedDict[bytes, None] = OrderedDict()
        self._buckets = TokenBuckets(NOT_FOUND, REFILL_PER_SECOND, ALLOWANCE_USED)
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
        """Look up for a token, which a cancelled look-up costs too: clients can cause that at will."""
        try:
            self._buckets.take(network)
        except TooManyRequests:
            self._limited()
            raise
        try:
            async with self._queue.slot(network):
                session = await look_up()
        except Exception as error:
            self._buckets.refund(network)
            if isinstance(error, TooManyRequests):
                self._limited()
            raise
        if session is not None:
            self._buckets.refund(network)
        return session
