"""Credentials of calls: sessions and tokens, with the rights that each gives now."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.database.tables import sessions, tokens, users
from codehub.domain.audit import Actor
from codehub.domain.problems import Forbidden
from codehub.domain.scopes import CredentialKind, Scope, effective_scopes, scopes_of_role
from codehub.domain.states import Role


@dataclass(frozen=True)
class TokenInfo:
    """Id and name of the token that a call came with."""

    id: str
    name: str
    last_used_at: datetime | None = None


@dataclass(frozen=True)
class Credential:
    """Authenticated caller: a user, and what this session or token of theirs permits.

    `id_hash` is the SHA-256 of the session's id or of the token. `workspaces` is None unless a token
    is bound to workspaces. `password_at` is when the user of a session last entered a password.
    """

    kind: CredentialKind
    id_hash: bytes
    user_id: str
    username: str
    role: Role
    scopes: frozenset[Scope]
    expires_at: datetime | None
    password_at: datetime | None = None
    workspaces: frozenset[str] | None = None
    token: TokenInfo | None = None

    @property
    def is_admin(self) -> bool:
        """Whether this credential permits what only admins may do."""
        return Scope.ADMIN in self.scopes

    @property
    def is_token(self) -> bool:
        return self.kind is CredentialKind.TOKEN

    @property
    def actor_name(self) -> str:
        """The name under which timelines and the audit log tell what this caller did."""
        return self.username if self.token is None else f"{self.username} (token {self.token.name})"

    def actor(self, address: str) -> Actor:
        return Actor.person(self.user_id, self.actor_name, self.role, address)

    def sees(self, workspace_id: str) -> bool:
        """Return whether a token's binding, if any, includes this workspace."""
        return self.workspaces is None or workspace_id in self.workspaces

    def check_sees(self, workspace_id: str) -> None:
        """Raise Forbidden for a workspace that the token is not bound to, whether it exists or not."""
        if not self.sees(workspace_id):
            raise Forbidden("This token is bound to other workspaces.")

    def check_not_bound(self) -> None:
        """Raise Forbidden for a token that is bound to workspaces."""
        if self.workspaces is not None:
            raise Forbidden("This token is bound to certain workspaces, so it cannot create others.")


async def find_session(conn: AsyncConnection, id_hash: bytes, now: datetime) -> Credential | None:
    """Return a session that has not ended, of a user who is not deleted."""
    return (await _find_sessions(conn, [id_hash], now)).get(id_hash)


async def find_token(conn: AsyncConnection, token_hash: bytes, now: datetime) -> Credential | None:
    """Return a token that is neither revoked nor expired, of a user who is not deleted."""
    return (await _find_tokens(conn, [token_hash], now)).get(token_hash)


async def find_same(
    conn: AsyncConnection, credentials: Collection[Credential], now: datetime
) -> dict[bytes, Credential]:
    """Return those of the credentials that are still valid, as they are now, by hash."""
    hashes = {kind: [c.id_hash for c in credentials if c.kind is kind] for kind in CredentialKind}
    found: dict[bytes, Credential] = {}
    if hashes[CredentialKind.SESSION]:
        found |= await _find_sessions(conn, hashes[CredentialKind.SESSION], now)
    if hashes[CredentialKind.TOKEN]:
        found |= await _find_tokens(conn, hashes[CredentialKind.TOKEN], now)
    return found


async def is_unchanged(conn: AsyncConnection, credential: Credential, now: datetime) -> bool:
    """Return whether a credential is still valid and still gives the same rights."""
    current = (await find_same(conn, [credential], now)).get(credential.id_hash)
    return current is not None and current.role is credential.role


async def _find_sessions(
    conn: AsyncConnection, hashes: list[bytes], now: datetime
) -> dict[bytes, Credential]:
    c = sessions.c
    query = (
        select(c.id_hash, c.expires_at, c.password_at, users.c.id, users.c.username, users.c.role)
        .join(users, users.c.id == c.user_id)
        .where(c.id_hash.in_(hashes), c.expires_at > now, users.c.deleted_at.is_(None))
    )
    return {
        row.id_hash: Credential(
            CredentialKind.SESSION,
            row.id_hash,
            row.id,
            row.username,
            Role(row.role),
            scopes_of_role(Role(row.role)),
            row.expires_at,
            password_at=row.password_at,
        )
        for row in await conn.execute(query)
    }


async def _find_tokens(conn: AsyncConnection, hashes: list[bytes], now: datetime) -> dict[bytes, Credential]:
    c = tokens.c
    query = (
        select(tokens, users.c.username, users.c.role)
        .join(users, users.c.id == c.user_id)
        .where(
            c.token_hash.in_(hashes),
            or_(c.expires_at.is_(None), c.expires_at > now),
            users.c.deleted_at.is_(None),
        )
    )
    return {
        row.token_hash: Credential(
            CredentialKind.TOKEN,
            row.token_hash,
            row.user_id,
            row.username,
            Role(row.role),
            effective_scopes([Scope(scope) for scope in row.scopes], Role(row.role)),
            row.expires_at,
            workspaces=None if row.workspaces is None else frozenset(row.workspaces),
            token=TokenInfo(row.id, row.name, row.last_used_at),
        )
        for row in await conn.execute(query)
    }
