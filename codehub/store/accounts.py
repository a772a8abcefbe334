"""People who may sign in, and the rules of signing in."""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Row, func, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from ulid import ULID

from codehub.domain.problems import InvalidState, NotFound, TooManyRequests, Unauthorized, ValidationFailed
from codehub.domain.states import Role
from codehub.store import gate, lockout, sessions
from codehub.store.locks import AdvisoryLock, hold_lock
from codehub.store.passwords import hash_password, verify_password
from codehub.store.tables import users, workspaces

MIN_PASSWORD: Final = 8
MAX_PASSWORD: Final = 1024
MAX_ATTEMPTS_AT_ONCE: Final = 16
_USERNAME = re.compile(r"[a-z0-9._-]{1,64}")


@dataclass(frozen=True)
class Account:
    id: str
    username: str
    role: Role
    created_at: datetime


@dataclass(frozen=True)
class SignedIn:
    account: Account
    session_id: str


def check_username(username: str) -> str:
    """The name as it is stored: names differ by more than their case."""
    name = username.lower()
    if not _USERNAME.fullmatch(name):
        raise ValidationFailed("A username has 1 to 64 characters out of a-z, 0-9, '.', '_' and '-'.")
    return name


def check_password(password: str) -> str:
    if not MIN_PASSWORD <= len(password) <= MAX_PASSWORD:
        raise ValidationFailed(f"A password has {MIN_PASSWORD} to {MAX_PASSWORD} characters.")
    return password


async def sign_in(
    engine: AsyncEngine, username: str, password: str, address: str, *, now: datetime
) -> SignedIn:
    """A new session, or Unauthorized with the same words and the same work whatever was wrong."""
    name = username.lower()
    if not _USERNAME.fullmatch(name):
        name = ""  # nobody's: it takes the same way as any other unknown name
    key = lockout.lockout_key(name, address)
    async with _one_attempt_at_a_time(key):
        async with engine.begin() as conn:
            await lockout.refuse_if_locked(conn, key, now)
            row = (await conn.execute(_living.where(users.c.username == name))).first()
        if not await verify_password(password, row.password_hash if row else None) or row is None:
            async with engine.begin() as conn:
                await lockout.record_failure(conn, key, now)
            raise Unauthorized("The username or the password is not right.")
        async with engine.begin() as conn:
            await lockout.forget_failures(conn, key)
            await _hold_as_verified(conn, row)
            session_id = await sessions.open_session(conn, row.id, now)
    return SignedIn(_account(row), session_id)


_attempts: dict[str, list[asyncio.Future[None]]] = {}


@asynccontextmanager
async def _one_attempt_at_a_time(key: str) -> AsyncIterator[None]:
    """Parallel guesses queue up, so that the fifth failure locks before a sixth is looked at."""
    line = _attempts.setdefault(key, [])
    if len(line) >= MAX_ATTEMPTS_AT_ONCE:
        raise TooManyRequests("Too many sign-ins at once. Try again shortly.", retry_after=2)
    turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    line.append(turn)
    try:
        if line[0] is not turn:
            await turn
        yield
    finally:
        line.remove(turn)
        if not line:
            _attempts.pop(key, None)
        elif not line[0].done():
            line[0].set_result(None)


_living = select(users).where(users.c.deleted_at.is_(None))


def _account(row: Row[Any]) -> Account:
    return Account(row.id, row.username, Role(row.role), row.created_at)


async def hold(conn: AsyncConnection, user_id: str) -> bool:
    """Keep the user from being deleted until this transaction ends; False when it already is."""
    query = _living.where(users.c.id == user_id).with_for_update(read=True, key_share=True)
    return (await conn.execute(query)).first() is not None


async def _hold_as_verified(conn: AsyncConnection, row: Row[Any]) -> None:
    """Hold the user whose password was verified, unless it was deleted or changed in the meantime."""
    query = _living.where(users.c.id == row.id, users.c.password_hash == row.password_hash)
    if (await conn.execute(query.with_for_update())).first() is None:
        raise Unauthorized


async def list_accounts(conn: AsyncConnection, limit: int, offset: int) -> tuple[list[Account], int]:
    total = await conn.scalar(select(func.count()).select_from(users).where(users.c.deleted_at.is_(None)))
    rows = await conn.execute(_living.order_by(users.c.username).limit(limit).offset(offset))
    return [_account(row) for row in rows], total or 0


async def find_account(conn: AsyncConnection, username: str) -> Account:
    row = (await conn.execute(_living.where(users.c.username == username.lower()))).first()
    if row is None:
        raise NotFound(f"There is no user {username!r}.")
    return _account(row)


async def create_account(
    engine: AsyncEngine, username: str, password: str, role: Role = Role.USER, *, now: datetime
) -> Account:
    name, password_hash = check_username(username), await hash_password(check_password(password))
    async with engine.begin() as conn:
        return await _insert(conn, name, password_hash, role, now)


async def _insert(conn: AsyncConnection, name: str, password_hash: str, role: Role, now: datetime) -> Account:
    account = Account(str(ULID()).lower(), name, role, now)
    try:
        await conn.execute(
            insert(users).values(
                id=account.id,
                username=name,
                password_hash=password_hash,
                role=role.value,
                created_at=account.created_at,
            )
        )
    except IntegrityError as error:
        raise InvalidState(f"The username {name!r} is taken.") from error
    return account


async def change_own_password(
    engine: AsyncEngine, session: sessions.Session, current: str, new: str, address: str, *, now: datetime
) -> None:
    """Ends the user's other sessions. Guessing the current password is counted like a sign-in."""
    check_password(new)
    key = lockout.lockout_key(session.username, address)
    async with _one_attempt_at_a_time(key):
        async with engine.begin() as conn:
            await lockout.refuse_if_locked(conn, key, now)
            row = (await conn.execute(_living.where(users.c.id == session.user_id))).first()
        if row is None or not await verify_password(current, row.password_hash):
            async with engine.begin() as conn:
                await lockout.record_failure(conn, key, now)
            raise ValidationFailed("The current password is not right.")
        password_hash = await hash_password(new)
        async with engine.begin() as conn:
            await lockout.forget_failures(conn, key)
            await _hold_as_verified(conn, row)
            await _set(conn, session.user_id, password_hash=password_hash)
            await sessions.end_sessions(conn, session.user_id, spare=session.id_hash)


async def change_account(
    engine: AsyncEngine,
    user_id: str,
    *,
    password: str | None = None,
    role: Role | None = None,
    spare: bytes | None = None,
) -> Account:
    """What an admin may change. A new password ends the user's sessions, but for `spare`."""
    password_hash = None if password is None else await hash_password(check_password(password))
    async with engine.begin() as conn:
        await _lock_admins(conn)
        account = await _locked(conn, user_id)
        if role is not None and role is not account.role:
            await _refuse_last_admin(conn, account)
            await _set(conn, user_id, role=role.value)
        if password_hash is not None:
            await _set(conn, user_id, password_hash=password_hash)
            await sessions.end_sessions(conn, user_id, spare=spare)
        return await _locked(conn, user_id)


async def delete_account(engine: AsyncEngine, user_id: str, *, actor: str, now: datetime) -> None:
    """The user and all its workspaces, in one transaction, or nothing while one of them is busy."""
    async with engine.begin() as conn:
        await _lock_admins(conn)
        account = await _locked(conn, user_id)
        await _refuse_last_admin(conn, account)
        owned = select(workspaces.c.id).where(
            workspaces.c.owner_id == user_id, workspaces.c.deleted_at.is_(None)
        )
        for workspace_id in (await conn.scalars(owned.order_by(workspaces.c.id))).all():
            await gate.delete(conn, workspace_id, actor=actor, now=now)
        await _set(conn, user_id, deleted_at=now)
        await sessions.end_sessions(conn, user_id)


async def has_admin(engine: AsyncEngine) -> bool:
    async with engine.connect() as conn:
        return await _count_admins(conn) > 0


async def ensure_admin(
    engine: AsyncEngine, username: str, password: str | None, *, now: datetime
) -> str | None:
    """Make the first admin when there is none; the generated password, if one was generated.

    With an admin already there nothing changes, whatever the arguments say.
    """
    async with engine.begin() as conn:
        if await _count_admins(conn):
            return None
    generated = secrets.token_urlsafe(15) if password is None else None
    name = check_username(username)
    password_hash = await hash_password(check_password(password or generated or ""))
    async with engine.begin() as conn:
        await _lock_admins(conn)
        if await _count_admins(conn):
            return None
        await _insert(conn, name, password_hash, Role.ADMIN, now)
    return generated


async def _lock_admins(conn: AsyncConnection) -> None:
    await hold_lock(conn, AdvisoryLock.ADMINS)


async def _locked(conn: AsyncConnection, user_id: str) -> Account:
    row = (await conn.execute(_living.where(users.c.id == user_id).with_for_update())).first()
    if row is None:
        raise NotFound("There is no such user.")
    return _account(row)


async def _count_admins(conn: AsyncConnection) -> int:
    query = select(func.count()).where(users.c.role == Role.ADMIN.value, users.c.deleted_at.is_(None))
    return await conn.scalar(query) or 0


async def _refuse_last_admin(conn: AsyncConnection, account: Account) -> None:
    if account.role is Role.ADMIN and await _count_admins(conn) <= 1:
        raise InvalidState("This is the last admin. Make another one first.")


async def _set(conn: AsyncConnection, user_id: str, **values: object) -> None:
    await conn.execute(update(users).where(users.c.id == user_id).values(**values))
