"""Sessions and routes in memory, so that the hot path asks neither PostgreSQL nor Redis.

What is in memory counts only while the push channel that invalidates it has answered lately. A lookup that
an invalidation overtakes is made again, so that nothing older than the last push is ever remembered.
"""

import math
import time
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, Generic, Protocol, TypeVar

from codehub.database.gate import RecoverFrom
from codehub.database.gateway_queries import Route, StatusPageData, Visitor
from codehub.domain.audit import Actor
from codehub.domain.workspace import Workspace
from codehub.session_lookups import SessionLookups

FRESH_SECONDS: Final = 5.0
MAX_ENTRIES: Final = 100_000

Key = TypeVar("Key", bytes, str)
Value = TypeVar("Value")


class NotCached(Enum):
    """Not in memory: ask the database."""

    NOT_CACHED = "unknown"


NOT_CACHED: Final = NotCached.NOT_CACHED


class Source(Protocol):
    """The truth behind the directory: PostgreSQL, or a test's own."""

    async def visitor(self, id_hash: bytes) -> Visitor | None: ...

    async def route(self, workspace_id: str) -> Route | None: ...

    async def situation(self, workspace_id: str) -> StatusPageData | None: ...

    async def counted(self, owner_id: str, *, besides: str) -> list[Workspace]: ...

    async def wake(self, workspace_id: str, actor: str) -> None:
        """Wish for RUNNING through the gate; raises its Problem when that cannot be."""

    async def stop(self, workspace_id: str, actor: str) -> None:
        """Wish for STANDBY, in the same way."""

    async def recover(self, workspace_id: str, owner: Actor, source: RecoverFrom | None) -> None:
        """Ask for the recovery from an error, in the same way."""


class _Lookup:
    """One question under way."""

    __slots__ = ("overtaken",)

    def __init__(self) -> None:
        self.overtaken = False


class _Cache(Generic[Key, Value]):
    def __init__(self, ask: Callable[[Key], Awaitable[Value | None]]) -> None:
        self._ask: Callable[[Key], Awaitable[Value | None]] = ask
        self.known: dict[Key, Value] = {}
        self._asking: dict[Key, set[_Lookup]] = {}

    async def load(self, key: Key) -> Value | None:
        lookup = _Lookup()
        self._asking.setdefault(key, set()).add(lookup)
        try:
            while True:
                lookup.overtaken = False
                value = await self._ask(key)
                if not lookup.overtaken:
                    self._remember(key, value)
                    return value
        finally:
            self._asking[key].discard(lookup)
            if not self._asking[key]:
                del self._asking[key]

    def forget(self, key: Key) -> None:
        self.known.pop(key, None)
        for lookup in self._asking.get(key, ()):
            lookup.overtaken = True

    def forget_all(self) -> None:
        self.known.clear()
        self.overtake_all()

    def overtake_all(self) -> None:
        for lookups in self._asking.values():
            for lookup in lookups:
                lookup.overtaken = True

    def _remember(self, key: Key, value: Value | None) -> None:
        """What is not there is not remembered: guesses of strangers shall not fill the memory."""
        if value is None:
            return
        if len(self.known) >= MAX_ENTRIES:
            self.known.clear()
        self.known[key] = value


class RouteCache:
    def __init__(self, source: Source) -> None:
        self.source = source
        self._visitors: _Cache[bytes, Visitor] = _Cache(source.visitor)
        self._routes: _Cache[str, Route] = _Cache(source.route)
        self._lookups = SessionLookups()
        self._answered_at = -math.inf

    @property
    def fresh(self) -> bool:
        return time.monotonic() - self._answered_at < FRESH_SECONDS

    def channel_answered(self) -> None:
        self._answered_at = time.monotonic()

    def channel_lost(self) -> None:
        self._answered_at = -math.inf

    def visitor(self, id_hash: bytes) -> Visitor | NotCached | None:
        return self._visitors.known.get(id_hash, NOT_CACHED) if self.fresh else NOT_CACHED

    def route(self, workspace_id: str) -> Route | NotCached | None:
        return self._routes.known.get(workspace_id, NOT_CACHED) if self.fresh else NOT_CACHED

    def holds(self, id_hash: bytes, visitor: Visitor, route: Route) -> bool:
        """Whether these very ones are in memory, and the memory is to be trusted."""
        return (
            self._visitors.known.get(id_hash) is visitor
            and self._routes.known.get(route.workspace_id) is route
            and self.fresh
        )

    def remembers(self, id_hash: bytes) -> bool:
        """Whether no push has spoken of this session since it was loaded."""
        return id_hash in self._visitors.known

    async def load_visitor(self, id_hash: bytes) -> Visitor | None:
        """Look up a session that was one before: a ticket names it, or something open belongs to it."""
        return await self._visitors.load(id_hash)

    async def find_visitor(self, id_hash: bytes, address: str) -> Visitor | None:
        """Look up the session that a cookie of the client at `address` names; raises TooManyRequests."""
        return await self._lookups.find(id_hash, address, lambda: self._visitors.load(id_hash))

    async def load_route(self, workspace_id: str) -> Route | None:
        return await self._routes.load(workspace_id)

    def forget_session(self, id_hash: bytes) -> None:
        self._visitors.forget(id_hash)

    def forget_route(self, workspace_id: str) -> None:
        self._routes.forget(workspace_id)

    def forget_user(self, user_id: str) -> None:
        """A user changed: whatever is being looked up may be about that user."""
        known = self._visitors.known
        for id_hash in [key for key, value in known.items() if value.user_id == user_id]:
            self._visitors.forget(id_hash)
        self._visitors.overtake_all()

    def forget_all(self) -> None:
        self._visitors.forget_all()
        self._routes.forget_all()
