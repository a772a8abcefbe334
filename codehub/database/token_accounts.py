"""Making and revoking the tokens of users and service accounts, with audit entries."""

from datetime import datetime
from typing import Any

from sqlalchemy import Row, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from codehub.database import audit, tokens
from codehub.database.credentials import Credential
from codehub.database.password_verification import active_users
from codehub.database.tables import users, workspaces
from codehub.database.tokens import Token
from codehub.domain.audit import Action, Actor, Target, TargetKind
from codehub.domain.new_token import (
    NewToken,
    TokenOwner,
    check_may_make_for,
    check_name,
    check_password_is_recent,
)
from codehub.domain.problems import NotFound, ValidationFailed
from codehub.domain.scopes import Scope
from codehub.domain.states import Role


async def make_token(
    engine: AsyncEngine, maker: Credential, owner_id: str, wanted: NewToken, *, actor: Actor, now: datetime
) -> tuple[Token, str]:
    """Make a token; return it, and the secret that its owner sees once.

    The maker has entered their password within the last minutes. The owner's row is locked, so that
    parallel calls cannot exceed the limit, and none can survive the owner's deletion.
    """
    check_password_is_recent(maker.password_at, now)
    async with audit.transaction(engine, actor, now) as act:
        user = await _lock_owner(act.conn, owner_id)
        owner = TokenOwner(user.id, Role(user.role), user.service)
        check_may_make_for(owner, maker.user_id, maker_is_admin=maker.is_admin)
        existing = await tokens.list_tokens(act.conn, owner_id)
        wanted.check_owner(owner, len(existing))
        check_name(wanted.name, [token.name for token in existing])
        if wanted.workspaces is not None:
            await _check_workspaces(act.conn, owner_id, wanted.workspaces)
        token, secret = await tokens.make_token(act.conn, owner_id, wanted, created_by=maker.user_id, now=now)
        await act.record(
            Action.TOKEN_CREATED,
            _target(token),
            owner=user.username,
            scopes=tuple(scope.value for scope in Scope if scope in token.scopes),
            workspaces=token.workspaces,
            expires_at=None if token.expires_at is None else token.expires_at.isoformat(),
        )
    return token, secret


async def revoke_token(
    engine: AsyncEngine, owner_id: str, token_id: str, *, actor: Actor, now: datetime
) -> None:
    """Revoke a token of this owner, or raise NotFound."""
    async with audit.transaction(engine, actor, now) as act:
        user = await _lock_owner(act.conn, owner_id)
        token = await tokens.revoke_token(act.conn, owner_id, token_id)
        if token is None:
            raise NotFound("There is no such token. It may be revoked already.")
        await act.record(Action.TOKEN_REVOKED, _target(token), owner=user.username)


async def list_tokens(engine: AsyncEngine, owner_id: str) -> list[Token]:
    """Return the tokens of a user who is not deleted, newest first."""
    async with engine.connect() as conn:
        if (await conn.execute(active_users.where(users.c.id == owner_id))).first() is None:
            raise NotFound("There is no such user.")
        return await tokens.list_tokens(conn, owner_id)


async def _lock_owner(conn: AsyncConnection, owner_id: str) -> Row[Any]:
    user = (await conn.execute(active_users.where(users.c.id == owner_id).with_for_update())).first()
    if user is None:
        raise NotFound("There is no such user.")
    return user


async def _check_workspaces(conn: AsyncConnection, owner_id: str, ids: tuple[str, ...]) -> None:
    c = workspaces.c
    living = select(func.count()).where(c.id.in_(ids), c.owner_id == owner_id, c.deleted_at.is_(None))
    if await conn.scalar(living) != len(ids):
        raise ValidationFailed("workspaces: each must be a workspace of the token's owner.")


def _target(token: Token) -> Target:
    return Target(TargetKind.TOKEN, token.id, token.name)
