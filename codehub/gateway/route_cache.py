"""Cache of sessions and routes, so that the hot path reads neither PostgreSQL nor Redis.

Entries are valid only while the connection of the invalidation listener answers. A lookup that an
invalidation makes stale is repeated, so that nothing older than the last notification enters the
cache.
"""

import math
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Final, Generic, Protocol, TypeVar

from codehub.concurrency_limits import ConcurrencyLimit
from codehub.database.gate import RecoverFrom
from codehub.database.gateway_queries import Route, SessionUser, StatusPageData
from codehub.domain.audit import Actor
from codehub.domain.workspace import Workspace
from codehub.session_lookup_limit import SessionLookupLimit

FRESH_SECONDS: Final = 5.0
MAX_ENTRIES: Final = 100_000
LOOKUPS_AT_ONCE: Final = 4
"""Of one user in one worker, whose pool has 10 connections."""
LOOKUPS_WAITING: Final = 252
"""A browser that restores its tabs sends 6 requests at once to each of their hosts."""
TOO_MANY_LOOKUPS: Final = "Too many of your requests are waiting. Close pages that you do not use."

Key = TypeVar("Key", bytes, str)
Value = TypeVar("Value")


class NotCached(Enum):
    """Marker for a key that is not in memory. (None means that it does not exist.)"""

    NOT_CACHED = "not cached"


NOT_CACHED: Final = NotCached.NOT_CACHED


class RouteSource(Protocol):
    """Interface to sessions and routes, and to the actions of the gateway's pages."""

    async def session_user(self, id_hash: bytes) -> SessionUser | None: ...

    async def token_user(self, token_hash: bytes) -> SessionUser | None: ...

    async def route(self, workspace_id: str) -> Route | None: ...

    async def status_page_data(self, workspace_id: str) -> StatusPageData | None: ...

    async def counted_workspaces(self, owner_id: str, *, besides: str) -> list[Workspace]: ...

    async def wake(self, workspace_id: str, actor: str) -> None:
        """Set the desired state RUNNING. Raises the gate's Problem if it refuses."""

    async def stop(self, workspace_id: str, actor: str) -> None:
        """Set the desired state STANDBY, likewise."""

    async def recover(self, workspace_id: str, owner: Actor, source: RecoverFrom | None) -> None:
        """Request the recovery from an error, likewise."""


class _PendingLoad:
    """A lookup in progress."""

    __slots__ = ("stale",)

    def __init__(self) -> None:
        self.stale = False


class _Cache(Generic[Key, Value]):
    """Map that loads missing values and repeats stale lookups."""

    def __init__(self, read: Callable[[Key], Awaitable[Value | None]]) -> None:
        self._read: Callable[[Key], Awaitable[Value | None]] = read
        self.known: dict[Key, Value] = {}
        self._lookups: dict[Key, set[_PendingLoad]] = {}

    async def load(self, key: Key) -> Value | None:
        lookup = _PendingLoad()
        self._lookups.setdefault(key, set()).add(lookup)
        try:
            while True:
                lookup.stale = False
                value = await self._read(key)
                if not lookup.stale:
                    self._remember(key, value)
                    return value
        finally:
            self._lookups[key].discard(lookup)
            if not self._lookups[key]:
                del self._lookups[key]

    def forget(self, key: Key) -> None:
        self.known.pop(key, None)
        for lookup in self._lookups.get(key, ()):
            lookup.stale = True

    def forget_all(self) -> None:
        self.known.clear()
        self.mark_lookups_stale()

    def mark_lookups_stale(self) -> None:
        for lookups in self._lookups.values():
            for lookup in lookups:
                lookup.stale = True

    def _remember(self, key: Key, value: Value | None) -> None:
        """Add a value that exists. Do not cache misses: guessed ids would fill the memory."""
        if value is None:
            return
        if len(self.known) >= MAX_ENTRIES:
            self.known.clear()
        self.known[key] = value


class RouteCache:
    """Sessions, tokens and routes, invalidated by NOTIFY."""

    def __init__(self, source: RouteSource) -> None:
        self.source = source
        self._session_users: _Cache[bytes, SessionUser] = _Cache(source.session_user)
        self._token_users: _Cache[bytes, SessionUser] = _Cache(source.token_user)
        """Apart from the sessions: a token opens the platform's streams only, and never a workspace."""
        self._routes: _Cache[str, Route] = _Cache(source.route)
        self._session_lookup_limit = SessionLookupLimit()
        self._limit = ConcurrencyLimit(LOOKUPS_AT_ONCE, LOOKUPS_WAITING, TOO_MANY_LOOKUPS)
        self._answered_at = -math.inf

    def slot(self, user_id: str) -> AbstractAsyncContextManager[None]:
        """Return a slot for work of a user that PostgreSQL or Redis takes part in."""
        return self._limit.slot(user_id)

    @property
    def fresh(self) -> bool:
        return time.monotonic() - self._answered_at < FRESH_SECONDS

    def channel_answered(self) -> None:
        self._answered_at = time.monotonic()

    def channel_lost(self) -> None:
        self._answered_at = -math.inf

    def session_user(self, id_hash: bytes) -> SessionUser | NotCached | None:
        return self._session_users.known.get(id_hash, NOT_CACHED) if self.fresh else NOT_CACHED

    def known_user(self, credential_hash: bytes) -> SessionUser | None:
        """Return the user of a session or token, if it is in memory."""
        if not self.fresh:
            return None
        known = self._session_users.known.get(credential_hash)
        return known or self._token_users.known.get(credential_hash)

    def route(self, workspace_id: str) -> Route | NotCached | None:
        return self._routes.known.get(workspace_id, NOT_CACHED) if self.fresh else NOT_CACHED

    def is_current(self, id_hash: bytes, session_user: SessionUser, route: Route) -> bool:
        """Return whether the cache is fresh and holds these very objects."""
        return (
            self._session_users.known.get(id_hash) is session_user
            and self._routes.known.get(route.workspace_id) is route
            and self.fresh
        )

    def is_session_cached(self, id_hash: bytes) -> bool:
        """Return whether this session was loaded and not invalidated since."""
        return id_hash in self._session_users.known

    async def load_session_user(self, id_hash: bytes) -> SessionUser | None:
        """Look up a session that existed before: a ticket or an open connection names it."""
        return await self._session_users.load(id_hash)

    async def load_credential_user(self, credential_hash: bytes) -> SessionUser | None:
        """Look up the session or token that an open connection names."""
        found = await self._session_users.load(credential_hash)
        return found or await self._token_users.load(credential_hash)

    async def find_token_user(self, token_hash: bytes, address: str) -> SessionUser | None:
        """Return the user of a client's token. Raises TooManyRequests if `address` guesses."""
        async with self._limit.slot(token_hash):
            known = self._token_users.known.get(token_hash) if self.fresh else None
            return known or await self._session_lookup_limit.find(
                token_hash, address, lambda: self._token_users.load(token_hash)
            )

    async def find_session_user(self, id_hash: bytes, address: str) -> SessionUser | None:
        """Return the session of a client's cookie. Raises TooManyRequests if `address` guesses."""
        async with self._limit.slot(id_hash):
            known = self.session_user(id_hash)  # loaded by another request while this one waited
            if not isinstance(known, NotCached):
                return known
            return await self._session_lookup_limit.find(
                id_hash, address, lambda: self._session_users.load(id_hash)
            )

    async def find_route(self, workspace_id: str, user_id: str) -> Route | None:
        """Return a route for a request of this user."""
        async with self._limit.slot(user_id):
            known = self.route(workspace_id)
            return await self.load_route(workspace_id) if isinstance(known, NotCached) else known

    async def load_route(self, workspace_id: str) -> Route | None:
        return await self._routes.load(workspace_id)

    def forget_credential(self, credential_hash: bytes) -> None:
        self._session_users.forget(credential_hash)
        self._token_users.forget(credential_hash)

    def forget_route(self, workspace_id: str) -> None:
        self._routes.forget(workspace_id)

    def forget_user(self, user_id: str) -> None:
        """Forget the user's sessions and tokens, and repeat all lookups of any: they may be the user's."""
        for users in (self._session_users, self._token_users):
            for credential_hash in [key for key, value in users.known.items() if value.user_id == user_id]:
                users.forget(credential_hash)
            users.mark_lookups_stale()

    def forget_all(self) -> None:
        self._session_users.forget_all()
        self._token_users.forget_all()
        self._routes.forget_all()
