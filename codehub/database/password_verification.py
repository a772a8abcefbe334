"""Password verification: one attempt at a time per account, with lockout and audit log."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from codehub.database import audit, lockout
from codehub.database.passwords import verify_password
from codehub.database.tables import users
from codehub.domain.audit import Action, Actor, Target, TargetKind
from codehub.domain.problems import Problem, TooManyRequests, Unauthorized

MAX_ATTEMPTS_AT_ONCE: Final = 16

active_users = select(users).where(users.c.deleted_at.is_(None))


@dataclass(frozen=True)
class PasswordAttempt:
    """Password that was entered for a username; `failure` is the audit action of a wrong one."""

    username: str
    password: str
    actor: Actor
    failure: Action
    refusal: Problem
    now: datetime

    @property
    def key(self) -> str:
        return lockout.lockout_key(self.username, self.actor.address)


@dataclass(frozen=True)
class VerifiedUser:
    """User whose password was entered correctly."""

    user: Row[Any]
    _key: str

    async def lock(self, conn: AsyncConnection) -> None:
        """Forget the failures and lock the user, or raise Unauthorized if the user has changed."""
        await lockout.forget_failures(conn, self._key)
        user = self.user
        query = active_users.where(users.c.id == user.id, users.c.password_hash == user.password_hash)
        if (await conn.execute(query.with_for_update())).first() is None:
            raise Unauthorized


@asynccontextmanager
async def verify(
    engine: AsyncEngine, condition: ColumnElement[bool], attempt: PasswordAttempt
) -> AsyncIterator[VerifiedUser]:
    """Verify a password, or raise the refusal: after the same work for every cause.

    The next attempt on the account waits until this context ends.
    """
    async with _one_attempt_at_a_time(attempt.key):
        async with engine.begin() as conn:
            await lockout.raise_if_locked(conn, attempt.key, attempt.now)
            user = (await conn.execute(active_users.where(condition))).first()
        if not await verify_password(attempt.password, user.password_hash if user else None) or user is None:
            await _record_failure(engine, attempt, user)
            raise attempt.refusal
        yield VerifiedUser(user, attempt.key)


async def _record_failure(engine: AsyncEngine, attempt: PasswordAttempt, user: Row[Any] | None) -> None:
    """Record a failure, but not an unknown name: it may be a password typed into that field."""
    target = None if user is None else Target(TargetKind.USER, user.id, user.username)
    async with audit.transaction(engine, attempt.actor, attempt.now) as act:
        failures = await lockout.record_failure(act.conn, attempt.key, attempt.now)
        if failures.lock:
            seconds = int(failures.lock.total_seconds())
            await act.record_failed_password(
                Action.SESSION_LOCKED, target, failures=failures.count, seconds=seconds
            )
        else:
            await act.record_failed_password(attempt.failure, target)


_attempts: dict[str, list[asyncio.Future[None]]] = {}


@asynccontextmanager
async def _one_attempt_at_a_time(key: str) -> AsyncIterator[None]:
    """Queue parallel guesses, so that the fifth failure locks before the sixth is verified."""
    queue = _attempts.setdefault(key, [])
    if len(queue) >= MAX_ATTEMPTS_AT_ONCE:
        raise TooManyRequests("Too many sign-ins at once. Try again shortly.", retry_after=2)
    turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    queue.append(turn)
    try:
        if queue[0] is not turn:
            await turn
        yield
    finally:
        queue.remove(turn)
        if not queue:
            _attempts.pop(key, None)
        elif not queue[0].done():
            queue[0].set_result(None)
