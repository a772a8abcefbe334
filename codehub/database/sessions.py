"""Sessions of signed-in users. Only the hash of a session id is stored."""

import base64
import hashlib
import secrets
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.database.tables import sessions

LIFETIME: Final = timedelta(hours=24)
MAX_PER_USER: Final = 50


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
            id_hash=hash_session_id(session_id),
            user_id=user_id,
            created_at=now,
            expires_at=now + LIFETIME,
            password_at=now,
        )
    )
    return session_id


async def renew_password_time(conn: AsyncConnection, id_hash: bytes, now: datetime) -> None:
    """Record that the session's user has entered the password again."""
    await conn.execute(update(sessions).where(sessions.c.id_hash == id_hash).values(password_at=now))


async def end_session(conn: AsyncConnection, id_hash: bytes) -> None:
    await conn.execute(delete(sessions).where(sessions.c.id_hash == id_hash))


async def end_sessions(conn: AsyncConnection, user_id: str, *, keep: bytes | None = None) -> None:
    """End every session of a user, except `keep`."""
    query = delete(sessions).where(sessions.c.user_id == user_id)
    await conn.execute(query if keep is None else query.where(sessions.c.id_hash != keep))
