"""API tokens. Only the hash of a token and its first characters are stored."""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Row, delete, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.database.tables import tokens
from codehub.domain.new_token import NewToken
from codehub.domain.scopes import Scope
from codehub.domain.token_format import SHOWN_LENGTH, TOKEN_LENGTH, TOKEN_PREFIX
from codehub.ulids import new_id

USE_RECORDED_EVERY: Final = timedelta(minutes=1)


@dataclass(frozen=True)
class Token:
    """A token as its owner sees it: without its secret."""

    id: str
    user_id: str
    name: str
    prefix: str
    scopes: frozenset[Scope]
    workspaces: tuple[str, ...] | None
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    last_used_at: datetime | None


def hash_token(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


async def make_token(
    conn: AsyncConnection, user_id: str, wanted: NewToken, *, created_by: str, now: datetime
) -> tuple[Token, str]:
    """Store a new token; return it, and its secret, which is not stored."""
    secret = TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_LENGTH * 3 // 4)
    row = await conn.execute(
        insert(tokens)
        .values(
            id=new_id(),
            user_id=user_id,
            name=wanted.name,
            token_hash=hash_token(secret),
            prefix=secret[:SHOWN_LENGTH],
            scopes=[scope.value for scope in Scope if scope in wanted.scopes],
            workspaces=None if wanted.workspaces is None else list(wanted.workspaces),
            created_at=now,
            created_by=created_by,
            expires_at=wanted.expires_at,
        )
        .returning(tokens)
    )
    return _to_token(row.one()), secret


async def list_tokens(conn: AsyncConnection, user_id: str) -> list[Token]:
    """Return the user's tokens, newest first, including expired ones."""
    query = select(tokens).where(tokens.c.user_id == user_id)
    rows = await conn.execute(query.order_by(tokens.c.created_at.desc(), tokens.c.id.desc()))
    return [_to_token(row) for row in rows]


async def count_tokens(conn: AsyncConnection, user_id: str) -> int:
    return await conn.scalar(select(func.count()).where(tokens.c.user_id == user_id)) or 0


async def revoke_token(conn: AsyncConnection, user_id: str, token_id: str) -> Token | None:
    """Remove a token of this user; return it, or None if there is none. A trigger announces its end."""
    query = delete(tokens).where(tokens.c.id == token_id, tokens.c.user_id == user_id)
    row = (await conn.execute(query.returning(tokens))).first()
    return None if row is None else _to_token(row)


async def revoke_tokens(conn: AsyncConnection, user_id: str) -> int:
    """Remove every token of a user; return how many."""
    return (await conn.execute(delete(tokens).where(tokens.c.user_id == user_id))).rowcount


def use_is_outdated(last_used_at: datetime | None, now: datetime) -> bool:
    """Return whether to record this use: at most about one a minute is written."""
    return last_used_at is None or now - last_used_at >= USE_RECORDED_EVERY


async def record_use(conn: AsyncConnection, token_id: str, now: datetime) -> None:
    c = tokens.c
    is_outdated = or_(c.last_used_at.is_(None), c.last_used_at <= now - USE_RECORDED_EVERY)
    await conn.execute(update(tokens).where(c.id == token_id, is_outdated).values(last_used_at=now))


def _to_token(row: Row[Any]) -> Token:
    return Token(
        id=row.id,
        user_id=row.user_id,
        name=row.name,
        prefix=row.prefix,
        scopes=frozenset(Scope(scope) for scope in row.scopes),
        workspaces=None if row.workspaces is None else tuple(row.workspaces),
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        last_used_at=row.last_used_at,
    )
