"""Sessions of signed-in users. Only the hash of a session id is stored."""

import base64
import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.database.tables import sessions, users
from codehub.domain.states import Role

LIFETIME: Final = timedelta(hours=24)
MAX_PER_USER: Final = 50


@dataclass(frozen=True)
class Session:
    id_hash: bytes
    user_id: str
    username: str
    role: Role
    expires_at: datetime

    @property
    def is_admin(self) -> bool:
        return self.role is Role.ADMIN


def hash_session_id(session_id: str) -> bytes:
    return hashlib.sha256(session_id.encode("utf-8", "surrogateescape")).digest()


async def open_session(conn: AsyncConnection, user_id: str, now: datetime) -> str:
    """Create a session and return its id, for the cookie.

    This also removes expired sessions and the user's oldest ones beyond MAX_PER_USER. The caller
    has locked the user's row, so that parallel sign-ins cannot exceed the limit.
    """
    session_id = base64.urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode()
    await conn.execute(delete(sessions).where(sessions.c.expires_at <= now))
    newest = select(sessions.c.id_hash).where(sessions.c.user_id == user_id)
    newest = newest.order_by(sessions.c.created_at.desc(), sessions.c.id_hash).limit(MAX_PER_USER - 1)
    await conn.execute(
        delete(sessions).where(sessions.c.user_id == user_id, sessions.c.id_hash.not_in(newest))
    )
    await conn.execute(
        insert(sessions).values(
            id_hash=hash_session_id(session_id), user_id=user_id, created_at=now, expires_at=now + LIFETIME
        )
    )
    return session_id


async def find_session(conn: AsyncConnection, id_hash: bytes, now: datetime) -> Session | None:
    row = (
        await conn.execute(
            select(sessions.c.expires_at, users.c.id, users.c.username, users.c.role)
            .join(users, users.c.id == sessions.c.user_id)
            .where(sessions.c.id_hash == id_hash, sessions.c.expires_at > now, users.c.deleted_at.is_(None))
        )
    ).first()
    return None if row is None else Session(id_hash, row.id, row.username, Role(row.role), row.expires_at)


async def valid_sessions(conn: AsyncConnection, id_hashes: list[bytes], now: datetime) -> set[bytes]:
    """Return which of these sessions are still valid."""
    rows = await conn.execute(
        select(sessions.c.id_hash)
        .join(users, users.c.id == sessions.c.user_id)
        .where(sessions.c.id_hash.in_(id_hashes), sessions.c.expires_at > now, users.c.deleted_at.is_(None))
    )
    return {row.id_hash for row in rows}


async def end_session(conn: AsyncConnection, id_hash: bytes) -> None:
    await conn.execute(delete(sessions).where(sessions.c.id_hash == id_hash))


async def end_sessions(conn: AsyncConnection, user_id: str, *, keep: bytes | None = None) -> None:
    """End every session of a user, except `keep`."""
    query = delete(sessions).where(sessions.c.user_id == user_id)
    await conn.execute(query if keep is None else query.where(sessions.c.id_hash != keep))
