"""Look-up of the credentials of calls, with bounds on what anyone can make it cost."""

from collections.abc import Awaitable, Callable

import structlog
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from codehub.clock import utc_now
from codehub.concurrency_limits import ConcurrencyLimit
from codehub.database import credentials, tokens
from codehub.database.credentials import Credential
from codehub.database.sessions import hash_session_id
from codehub.session_lookup_limit import SessionLookupLimit

logger = structlog.get_logger(__name__)


class CredentialLookup:
    """Finder of sessions and tokens: one user's calls wait for each other, and guesses run out."""

    def __init__(
        self, engine: AsyncEngine, limit: SessionLookupLimit, calls_per_credential: ConcurrencyLimit
    ) -> None:
        self._engine = engine
        self._limit = limit
        self._calls_per_credential = calls_per_credential

    async def session(self, session_id: str, address: str) -> Credential | None:
        id_hash = hash_session_id(session_id)

        async def find(conn: AsyncConnection) -> Credential | None:
            return await credentials.find_session(conn, id_hash, utc_now())

        return await self._find(id_hash, address, find)

    async def token(self, token: str, address: str) -> Credential | None:
        """Return a valid token's credential, and record its use now and then."""
        token_hash = tokens.hash_token(token)

        async def find(conn: AsyncConnection) -> Credential | None:
            return await credentials.find_token(conn, token_hash, utc_now())

        found = await self._find(token_hash, address, find)
        if found is not None:
            await self._record_use(found)
        return found

    def remember(self, id_hash: bytes) -> None:
        """Exempt a credential from the limits on unknown ones, because it was just made."""
        self._limit.remember(id_hash)

    async def _find(
        self, id_hash: bytes, address: str, find: Callable[[AsyncConnection], Awaitable[Credential | None]]
    ) -> Credential | None:
        async def look_up() -> Credential | None:
            async with self._engine.connect() as conn:
                return await find(conn)

        async with self._calls_per_credential.slot(id_hash):
            return await self._limit.find(id_hash, address, look_up)

    async def _record_use(self, credential: Credential) -> None:
        """Record the use of a token. A database without space for it still serves calls that read."""
        token, now = credential.token, utc_now()
        if token is None or not tokens.use_is_outdated(token.last_used_at, now):
            return
        try:
            async with self._engine.begin() as conn:
                await tokens.record_use(conn, token.id, now)
        except DBAPIError as error:
            logger.warning("the use of a token was not recorded", token_id=token.id, error=str(error.orig))
