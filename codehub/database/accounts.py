"""Accounts: signing in, and creating, changing and deleting users."""

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

from codehub.database import audit, gate, sessions, tokens
from codehub.database.advisory_locks import AdvisoryLock, hold_lock
from codehub.database.audit import AuditedTransaction
from codehub.database.credentials import Credential
from codehub.database.password_verification import PasswordAttempt, VerifiedUser, active_users, verify
from codehub.database.passwords import NO_PASSWORD, hash_password
from codehub.database.tables import users, workspaces
from codehub.domain.audit import Action, Actor, Target, TargetKind
from codehub.domain.problems import (
    Forbidden,
    InvalidState,
    NotFound,
    Problem,
    Unauthorized,
    ValidationFailed,
)
from codehub.domain.states import Role
from codehub.ulids import new_id

MIN_PASSWORD: Final = 8
MAX_PASSWORD: Final = 1024
_USERNAME = re.compile(r"[a-z0-9._-]{1,64}")


@dataclass(frozen=True)
class Account:
    id: str
    username: str
    role: Role
    created_at: datetime
    is_service: bool = False

    @property
    def target(self) -> Target:
        return Target(TargetKind.USER, self.id, self.username)


@dataclass(frozen=True)
class NewSession:
    account: Account
    session_id: str


def check_username(username: str) -> str:
    """Return the name as it is stored, in lower case, or raise ValidationFailed."""
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
) -> NewSession:
    """Open a session, or raise Unauthorized: with one message and the same work for every cause."""
    name = username.lower()
    if not _USERNAME.fullmatch(name):
        name = ""  # unknown, and takes as long as any other unknown name
    attempt = PasswordAttempt(
        name,
        password,
        Actor.anonymous(address),
        Action.SESSION_FAILED,
        Unauthorized("The username or the password is not right."),
        now,
    )
    async with verify(engine, (users.c.username == name) & ~users.c.service, attempt) as found:
        account = _account(found.user)
        actor = Actor.person(account.id, account.username, account.role, address)
        async with audit.transaction(engine, actor, now) as act:
            await found.lock(act.conn)
            session_id = await sessions.open_session(act.conn, account.id, now)
            await act.record(Action.SESSION_OPENED)
    return NewSession(account, session_id)


@asynccontextmanager
async def _verify_own_password(
    engine: AsyncEngine,
    session: Credential,
    password: str,
    refusal: Problem,
    actor: Actor,
    now: datetime,
) -> AsyncIterator[VerifiedUser]:
    """Verify the password of a signed-in user. A wrong one counts as a failed sign-in."""
    failure = Action.SESSION_CONFIRMATION_FAILED
    attempt = PasswordAttempt(session.username, password, actor, failure, refusal, now)
    async with verify(engine, users.c.id == session.user_id, attempt) as found:
        yield found


def _account(row: Row[Any]) -> Account:
    return Account(row.id, row.username, Role(row.role), row.created_at, row.service)


async def prevent_deletion(conn: AsyncConnection, user_id: str) -> bool:
    """Block the deletion of a user until this transaction ends; return False if it is deleted."""
    query = active_users.where(users.c.id == user_id).with_for_update(read=True, key_share=True)
    return (await conn.execute(query)).first() is not None


async def list_accounts(conn: AsyncConnection, limit: int, offset: int) -> tuple[list[Account], int]:
    total = await conn.scalar(select(func.count()).select_from(users).where(users.c.deleted_at.is_(None)))
    rows = await conn.execute(active_users.order_by(users.c.username).limit(limit).offset(offset))
    return [_account(row) for row in rows], total or 0


async def find_account(conn: AsyncConnection, username: str) -> Account:
    row = (await conn.execute(active_users.where(users.c.username == username.lower()))).first()
    if row is None:
        raise NotFound(f"There is no user {username!r}.")
    return _account(row)


async def create_account(
    engine: AsyncEngine,
    username: str,
    password: str,
    role: Role = Role.USER,
    *,
    actor: Actor,
    now: datetime,
) -> Account:
    name, password_hash = check_username(username), await hash_password(check_password(password))
    async with audit.transaction(engine, actor, now) as act:
        return await _insert(act, name, password_hash, role)


async def create_service_account(
    engine: AsyncEngine, username: str, *, actor: Actor, now: datetime
) -> Account:
    """Create an account without a password: nobody can sign in to it, and programs use its tokens."""
    name = check_username(username)
    async with audit.transaction(engine, actor, now) as act:
        return await _insert(act, name, NO_PASSWORD, Role.USER, is_service=True)


async def _insert(
    act: AuditedTransaction, name: str, password_hash: str, role: Role, *, is_service: bool = False
) -> Account:
    account = Account(new_id(), name, role, act.now, is_service)
    try:
        await act.conn.execute(
            insert(users).values(
                id=account.id,
                username=name,
                password_hash=password_hash,
                role=role.value,
                created_at=account.created_at,
                service=is_service,
            )
        )
    except IntegrityError as error:
        raise InvalidState(f"The username {name!r} is taken.") from error
    await act.record(Action.USER_CREATED, account.target, role=role.value, service=1 if is_service else None)
    return account


async def confirm_password(
    engine: AsyncEngine, session: Credential, password: str, *, actor: Actor, now: datetime
) -> None:
    """Check the password of a signed-in user again, and record when it was entered."""
    refusal = Forbidden("Your password is not right. Enter it again.")
    async with (
        _verify_own_password(engine, session, password, refusal, actor, now) as found,
        engine.begin() as conn,
    ):
        await found.lock(conn)
        await sessions.renew_password_time(conn, session.id_hash, now)


async def change_own_password(
    engine: AsyncEngine, session: Credential, current: str, new: str, *, actor: Actor, now: datetime
) -> None:
    """Set a new password and end the user's other sessions. Tokens stay, until they are revoked."""
    check_password(new)
    refusal = ValidationFailed("The current password is not right.")
    async with _verify_own_password(engine, session, current, refusal, actor, now) as found:
        password_hash = await hash_password(new)
        async with audit.transaction(engine, actor, now) as act:
            await found.lock(act.conn)
            await _update_user(act.conn, session.user_id, password_hash=password_hash)
            await sessions.end_sessions(act.conn, session.user_id, keep=session.id_hash)
            await sessions.renew_password_time(act.conn, session.id_hash, now)
            await act.record(Action.USER_PASSWORD_CHANGED, _account(found.user).target)


@dataclass(frozen=True)
class AccountChanges:
    """Changes that an admin may make; None keeps the value."""

    password: str | None = None
    role: Role | None = None


async def change_account_as_admin(
    engine: AsyncEngine,
    admin: Credential,
    own_password: str | None,
    user_id: str,
    changes: AccountChanges,
    *,
    actor: Actor,
    now: datetime,
) -> Account:
    """Change an account. To set a password, the admin enters their own.

    Otherwise a stolen or unattended session of an admin would be enough to become any user.
    """
    if changes.password is None:
        return await change_account(engine, user_id, changes, actor=actor, now=now)
    check_password(changes.password)
    if own_password is None:
        raise ValidationFailed("your_password: setting a user's password needs your own password as well.")
    refusal = Forbidden("Your own password is not right, so nothing was changed. Enter it again.")
    async with _verify_own_password(engine, admin, own_password, refusal, actor, now) as found:
        return await change_account(
            engine, user_id, changes, keep=admin.id_hash, confirmed=found, actor=actor, now=now
        )


async def change_account(
    engine: AsyncEngine,
    user_id: str,
    changes: AccountChanges,
    *,
    keep: bytes | None = None,
    confirmed: VerifiedUser | None = None,
    actor: Actor,
    now: datetime,
) -> Account:
    """Change an account. A new password ends the user's sessions, except `keep`. Tokens stay."""
    password, role = changes.password, changes.role
    password_hash = None if password is None else await hash_password(check_password(password))
    async with audit.transaction(engine, actor, now) as act:
        await _lock_admins(act.conn)
        if confirmed is not None:
            await confirmed.lock(act.conn)
        account = await _lock_user(act.conn, user_id)
        if account.is_service:
            _check_service_changes(changes)
        if role is not None and role is not account.role:
            await _check_not_last_admin(act.conn, account)
            await _update_user(act.conn, user_id, role=role.value)
            before, after = account.role.value, role.value
            await act.record(Action.USER_ROLE_CHANGED, account.target, before=before, after=after)
        if password_hash is not None:
            await _update_user(act.conn, user_id, password_hash=password_hash)
            await sessions.end_sessions(act.conn, user_id, keep=keep)
            await act.record(Action.USER_PASSWORD_SET, account.target)
        return await _lock_user(act.conn, user_id)


def _check_service_changes(changes: AccountChanges) -> None:
    if changes.password is not None:
        raise InvalidState("A service account has no password: nobody can sign in to it. Use its tokens.")
    if changes.role is Role.ADMIN:
        raise InvalidState("A service account cannot be an admin.")


async def delete_account(engine: AsyncEngine, user_id: str, *, actor: Actor, now: datetime) -> None:
    """Delete a user, their tokens and all their workspaces, or nothing if a workspace is busy."""
    async with audit.transaction(engine, actor, now) as act:
        await _lock_admins(act.conn)
        account = await _lock_user(act.conn, user_id)
        await _check_not_last_admin(act.conn, account)
        owned = select(workspaces.c.id).where(
            workspaces.c.owner_id == user_id, workspaces.c.deleted_at.is_(None)
        )
        workspace_ids = (await act.conn.scalars(owned.order_by(workspaces.c.id))).all()
        for workspace_id in workspace_ids:
            await gate.delete(act.conn, workspace_id, actor=actor.name, now=now)
        await _update_user(act.conn, user_id, deleted_at=now)
        await sessions.end_sessions(act.conn, user_id)
        revoked = await tokens.revoke_tokens(act.conn, user_id)
        await act.record(
            Action.USER_DELETED, account.target, workspaces=len(workspace_ids), tokens=revoked or None
        )


async def has_admin(engine: AsyncEngine) -> bool:
    async with engine.connect() as conn:
        return await _count_admins(conn) > 0


async def ensure_admin(
    engine: AsyncEngine, username: str, password: str | None, *, actor: Actor, now: datetime
) -> str | None:
    """Create the first admin; return the generated password, if one was generated.

    If there is an admin already, nothing changes.
    """
    async with engine.begin() as conn:
        if await _count_admins(conn):
            return None
    generated = secrets.token_urlsafe(15) if password is None else None
    name = check_username(username)
    password_hash = await hash_password(check_password(password or generated or ""))
    async with audit.transaction(engine, actor, now) as act:
        await _lock_admins(act.conn)
        if await _count_admins(act.conn):
            return None
        await _insert(act, name, password_hash, Role.ADMIN)
    return generated


async def _lock_admins(conn: AsyncConnection) -> None:
    await hold_lock(conn, AdvisoryLock.ADMINS)


async def _lock_user(conn: AsyncConnection, user_id: str) -> Account:
    row = (await conn.execute(active_users.where(users.c.id == user_id).with_for_update())).first()
    if row is None:
        raise NotFound("There is no such user.")
    return _account(row)


async def _count_admins(conn: AsyncConnection) -> int:
    query = select(func.count()).where(users.c.role == Role.ADMIN.value, users.c.deleted_at.is_(None))
    return await conn.scalar(query) or 0


async def _check_not_last_admin(conn: AsyncConnection, account: Account) -> None:
    if account.role is Role.ADMIN and await _count_admins(conn) <= 1:
        raise InvalidState("This is the last admin. Make another one first.")


async def _update_user(conn: AsyncConnection, user_id: str, **values: object) -> None:
    await conn.execute(update(users).where(users.c.id == user_id).values(**values))
