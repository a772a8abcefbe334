"""Consequences of a notification: forget cache entries, close connections without a valid grant."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import structlog

from codehub.database.gateway_queries import Route
from codehub.domain.states import Phase
from codehub.gateway.open_connections import OpenConnections
from codehub.gateway.route_cache import RouteCache

logger = structlog.get_logger(__name__)

RETRY_SECONDS: Final = 1.0


class RevocationHandler:
    """Handler of the events of the invalidation listener."""

    def __init__(
        self, route_cache: RouteCache, connections: OpenConnections, drop_upstream: Callable[[str], None]
    ) -> None:
        self._route_cache = route_cache
        self._connections = connections
        self._drop_upstream = drop_upstream
        self._checks: set[asyncio.Task[None]] = set()
        self._recheck: asyncio.TimerHandle | None = None

    def on_channel_answered(self) -> None:
        """Keep the cache valid, and close the connections of sessions and tokens that expired."""
        self._route_cache.channel_answered()
        now = time.time()
        for id_hash in self._connections.sessions():
            user = self._route_cache.known_user(id_hash)
            if user is not None and user.expires_at <= now:
                self._connections.revoke_session(id_hash)

    def on_channel_lost(self) -> None:
        self._route_cache.channel_lost()
        self._route_cache.forget_all()

    def on_channel_regained(self) -> None:
        """Forget everything and check all open connections, because notifications may have been missed."""
        self._route_cache.forget_all()
        self._route_cache.channel_answered()
        self._check_everything()

    def on_unreadable_notification(self) -> None:
        """Forget everything and check all open connections: the notification may have meant any of them."""
        self._route_cache.forget_all()
        self._check_everything()

    def _check_everything(self) -> None:
        self._recheck = None
        for id_hash in self._connections.sessions():
            self._start(self._check_session(id_hash))
        for workspace_id in self._connections.workspaces():
            self._start(self._check_workspace(workspace_id))

    def on_session_ended(self, id_hash: bytes) -> None:
        self._route_cache.forget_credential(id_hash)
        self._connections.revoke_session(id_hash)

    def on_user_changed(self, user_id: str) -> None:
        known = {id_hash: self._route_cache.known_user(id_hash) for id_hash in self._connections.sessions()}
        self._route_cache.forget_user(user_id)
        for id_hash, user in known.items():
            if user is None or user.user_id == user_id:
                self._start(self._check_session(id_hash))

    def on_route_changed(self, workspace_id: str) -> None:
        route = self._route_cache.route(workspace_id)
        self._route_cache.forget_route(workspace_id)
        if isinstance(route, Route) and route.upstream is not None:
            self._drop_upstream(route.upstream)
        if self._connections.has_workspace(workspace_id):
            self._start(self._check_workspace(workspace_id))

    async def close(self) -> None:
        if self._recheck is not None:
            self._recheck.cancel()
        for task in self._checks:
            task.cancel()
        await asyncio.gather(*self._checks, return_exceptions=True)

    async def _check_session(self, id_hash: bytes) -> None:
        """Close the connections of a session or token, except those that its current role permits."""
        user = await self._route_cache.load_credential_user(id_hash)
        self._connections.revoke_session(id_hash, except_role=user.role if user else None)

    async def _check_workspace(self, workspace_id: str) -> None:
        route = await self._route_cache.load_route(workspace_id)
        if route is None or route.phase is not Phase.RUNNING or route.upstream is None:
            self._connections.revoke_workspace(workspace_id)

    def _start(self, check: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(check)
        self._checks.add(task)
        task.add_done_callback(self._retry_failed_check)

    def _retry_failed_check(self, task: asyncio.Task[None]) -> None:
        """Check everything again after a failed check."""
        self._checks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("open connections could not be checked", error=str(error))
            if self._recheck is None:
                self._recheck = task.get_loop().call_later(RETRY_SECONDS, self._check_everything)
