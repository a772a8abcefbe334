"""What follows from a push: forget what is in memory, and end what is open without leave."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import structlog

from codehub.database.gateway_queries import Route, Visitor
from codehub.domain.states import Phase
from codehub.gateway.open_connections import OpenConnections
from codehub.gateway.route_cache import RouteCache

logger = structlog.get_logger(__name__)

RETRY_SECONDS: Final = 1.0


class RevocationHandler:
    def __init__(
        self, directory: RouteCache, live: OpenConnections, drop_upstream: Callable[[str], None]
    ) -> None:
        self._directory = directory
        self._live = live
        self._drop_upstream = drop_upstream
        self._checks: set[asyncio.Task[None]] = set()
        self._recheck: asyncio.TimerHandle | None = None

    def answered(self) -> None:
        """The channel is alive: what is in memory counts, and sessions that ran out meanwhile end."""
        self._directory.channel_answered()
        now = time.time()
        for id_hash in self._live.sessions():
            visitor = self._directory.visitor(id_hash)
            if isinstance(visitor, Visitor) and visitor.expires_at <= now:
                self._live.revoke_session(id_hash)

    def lost(self) -> None:
        self._directory.channel_lost()
        self._directory.forget_all()

    def regained(self) -> None:
        """Pushes may have been missed: nothing in memory counts, and everything open is looked at again."""
        self._directory.forget_all()
        self._directory.channel_answered()
        self._check_everything()

    def unreadable(self) -> None:
        """A push that says nothing may mean anything."""
        self._directory.forget_all()
        self._check_everything()

    def _check_everything(self) -> None:
        self._recheck = None
        for id_hash in self._live.sessions():
            self._start(self._check_session(id_hash))
        for workspace_id in self._live.workspaces():
            self._start(self._check_workspace(workspace_id))

    def session_ended(self, id_hash: bytes) -> None:
        self._directory.forget_session(id_hash)
        self._live.revoke_session(id_hash)

    def user_changed(self, user_id: str) -> None:
        known = {id_hash: self._directory.visitor(id_hash) for id_hash in self._live.sessions()}
        self._directory.forget_user(user_id)
        for id_hash, visitor in known.items():
            if not isinstance(visitor, Visitor) or visitor.user_id == user_id:
                self._start(self._check_session(id_hash))

    def route_changed(self, workspace_id: str) -> None:
        route = self._directory.route(workspace_id)
        self._directory.forget_route(workspace_id)
        if isinstance(route, Route) and route.upstream is not None:
            self._drop_upstream(route.upstream)
        if self._live.has_workspace(workspace_id):
            self._start(self._check_workspace(workspace_id))

    async def close(self) -> None:
        if self._recheck is not None:
            self._recheck.cancel()
        for task in self._checks:
            task.cancel()
        await asyncio.gather(*self._checks, return_exceptions=True)

    async def _check_session(self, id_hash: bytes) -> None:
        """What was opened in another role is opened anew in this one."""
        visitor = await self._directory.load_visitor(id_hash)
        self._live.revoke_session(id_hash, but_in=visitor.role if visitor else None)

    async def _check_workspace(self, workspace_id: str) -> None:
        route = await self._directory.load_route(workspace_id)
        if route is None or route.phase is not Phase.RUNNING or route.upstream is None:
            self._live.revoke_workspace(workspace_id)

    def _start(self, check: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(check)
        self._checks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A check that failed is made up for by looking at everything again, a little later."""
        self._checks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("open connections could not be checked", error=str(error))
            if self._recheck is None:
                self._recheck = task.get_loop().call_later(RETRY_SECONDS, self._check_everything)
