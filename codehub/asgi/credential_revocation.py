"""Revocation of streams when the credential that opened them ends or gives other rights.

The notifications come from PostgreSQL directly and not through Redis: the way through Redis needs a running
coordinator, and signing out must work without one.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.clock import utc_now
from codehub.database.credentials import Credential, find_same
from codehub.database.engine import CONNECTION_ERRORS
from codehub.database.notifications import NotificationListener

logger = structlog.get_logger(__name__)

ENDED: Final = "session_ended"
"""Channel on which triggers announce the end of sessions and tokens."""
USER_CHANGED: Final = "user_changed"


@dataclass(frozen=True, eq=False)
class _Watcher:
    credential: Credential
    ended: Callable[[], None]


class CredentialRevocations:
    """Registry of callbacks for the end of credentials, with one LISTEN connection per process."""

    def __init__(self, database_url: str, engine: AsyncEngine) -> None:
        self._engine = engine
        self._watchers: dict[bytes, set[_Watcher]] = {}
        self._checks: set[asyncio.Task[None]] = set()
        self._listener = NotificationListener(
            database_url, (ENDED, USER_CHANGED), self._on_notification, on_connected=self._check_all
        )

    @contextmanager
    def watch(self, credential: Credential, ended: Callable[[], None]) -> Iterator[None]:
        """Call `ended` when the credential is revoked, expires, or its user's role changes."""
        watcher = _Watcher(credential, ended)
        with ExitStack() as stack:
            self._watchers.setdefault(credential.id_hash, set()).add(watcher)
            stack.callback(self._forget, watcher)
            if credential.expires_at is not None:
                remaining = (credential.expires_at - utc_now()).total_seconds()
                expiry = asyncio.get_running_loop().call_later(remaining, ended)
                stack.callback(expiry.cancel)
            yield

    async def run(self) -> None:
        """Listen until cancelled."""
        try:
            await self._listener.run()
        finally:
            for check in self._checks:
                check.cancel()
            await asyncio.gather(*self._checks, return_exceptions=True)

    def _forget(self, watcher: _Watcher) -> None:
        remaining = self._watchers[watcher.credential.id_hash]
        remaining.remove(watcher)
        if not remaining:
            del self._watchers[watcher.credential.id_hash]

    async def _check_all(self) -> None:
        """End the streams of credentials that ended while no connection listened."""
        await self._check(list(self._watched()))

    async def _check_user(self, user_id: str) -> None:
        """Check the streams of a user. If the database does not answer, end them: clients reconnect."""
        watchers = [watcher for watcher in self._watched() if watcher.credential.user_id == user_id]
        try:
            await self._check(watchers)
        except (SQLAlchemyError, *CONNECTION_ERRORS) as error:
            logger.warning("the streams of a user could not be checked, so they end", error=str(error))
            for watcher in watchers:
                watcher.ended()

    async def _check(self, watchers: list[_Watcher]) -> None:
        if not watchers:
            return
        async with self._engine.connect() as conn:
            current = await find_same(conn, [watcher.credential for watcher in watchers], utc_now())
        for watcher in watchers:
            found = current.get(watcher.credential.id_hash)
            if found is None or found.role is not watcher.credential.role:
                watcher.ended()

    def _watched(self) -> Iterator[_Watcher]:
        for watchers in tuple(self._watchers.values()):
            yield from tuple(watchers)

    def _on_notification(self, channel: str, payload: str) -> None:
        try:
            fields = json.loads(payload)
            if channel == ENDED:
                self._end(bytes.fromhex(fields["id_hash"]))
            else:
                self._start(self._check_user(str(fields["id"])))
        except (ValueError, KeyError, TypeError):
            logger.error("a notification is unreadable", channel=channel, payload=payload)

    def _end(self, id_hash: bytes) -> None:
        for watcher in tuple(self._watchers.get(id_hash, ())):
            watcher.ended()

    def _start(self, check: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(check)
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)
