"""`/tokens`: the caller's API tokens. `/users/{id}/tokens`: those of an account, for admins.

No token reaches these calls: a stolen one must not be able to make others.
"""

from datetime import datetime, timedelta
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, Field, JsonValue

from codehub.api.permissions import UserId
from codehub.api.services import Now, Services, Shared
from codehub.asgi.callers import AccountCaller, AdminAccountCaller, CallerActor
from codehub.asgi.fields import Name, RequestBody
from codehub.database import token_accounts
from codehub.database.credentials import Credential
from codehub.database.tokens import Token, hash_token
from codehub.domain.audit import Actor
from codehub.domain.ids import ULID, is_ulid
from codehub.domain.new_token import MOST_WORKSPACES, NewToken
from codehub.domain.problems import NotFound
from codehub.domain.scopes import Scope

router = APIRouter(tags=["tokens"])

ScopeName = Literal["read", "manage", "use", "admin"]
_AT_LEAST_ONE: Final[dict[str, JsonValue]] = {"minItems": 1}
"""Said here for the OpenAPI document, and checked with a better sentence by `NewToken`."""
BoundId = Annotated[str, Field(pattern=rf"^{ULID}$")]


class NewTokenBody(RequestBody):
    """A token to make. Without `workspaces` it is for all of the owner's; otherwise for these only.

    Without `expires_in_days` it is valid until it is revoked.
    """

    name: Name
    scopes: Annotated[list[ScopeName], Field(max_length=len(Scope), json_schema_extra=_AT_LEAST_ONE)]
    workspaces: (
        Annotated[list[BoundId], Field(max_length=MOST_WORKSPACES, json_schema_extra=_AT_LEAST_ONE)] | None
    ) = None
    expires_in_days: Annotated[int, Field(ge=1, le=3650)] | None = None

    def to_token(self, now: datetime) -> NewToken:
        lifetime = None if self.expires_in_days is None else timedelta(days=self.expires_in_days)
        expires_at = None if lifetime is None else now + lifetime
        return NewToken.requested(
            self.name, [Scope(name) for name in self.scopes], self.workspaces, expires_at
        )


class TokenView(BaseModel):
    """A token without its secret. `prefix` is its beginning, by which its owner recognises it."""

    id: str
    name: str
    prefix: str
    scopes: list[Scope]
    workspaces: list[str] | None
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None

    @classmethod
    def of_token(cls, token: Token) -> "TokenView":
        return cls(
            id=token.id,
            name=token.name,
            prefix=token.prefix,
            scopes=[scope for scope in Scope if scope in token.scopes],
            workspaces=None if token.workspaces is None else list(token.workspaces),
            created_at=token.created_at,
            expires_at=token.expires_at,
            last_used_at=token.last_used_at,
        )


class MadeToken(TokenView):
    """A new token. `token` is its secret, which no later call returns."""

    token: str


class TokenList(BaseModel):
    items: list[TokenView]


@router.get("/tokens")
async def list_own_tokens(caller: AccountCaller, services: Shared) -> TokenList:
    """Return your tokens, without their secrets."""
    return await _list(services, caller.user_id)


@router.post("/tokens", status_code=201)
async def make_own_token(
    body: NewTokenBody, caller: AccountCaller, actor: CallerActor, services: Shared, now: Now
) -> MadeToken:
    """Make a token. PASSWORD_REQUIRED asks for POST /session/confirm first."""
    return await _make(services, caller, caller.user_id, body, actor, now)


@router.delete("/tokens/{token_id}", status_code=204)
async def revoke_own_token(
    token_id: Annotated[str, Path()], caller: AccountCaller, actor: CallerActor, services: Shared, now: Now
) -> Response:
    """Revoke one of your tokens. Its event streams end."""
    return await _revoke(services, caller.user_id, token_id, actor, now)


@router.get("/users/{user_id}/tokens")
async def list_tokens_of_user(user_id: UserId, _admin: AdminAccountCaller, services: Shared) -> TokenList:
    """Return the tokens of an account, without their secrets."""
    return await _list(services, user_id)


@router.post("/users/{user_id}/tokens", status_code=201)
async def make_token_of_service_account(
    user_id: UserId,
    body: NewTokenBody,
    admin: AdminAccountCaller,
    actor: CallerActor,
    services: Shared,
    now: Now,
) -> MadeToken:
    """Make a token of a service account. People make their own."""
    return await _make(services, admin, user_id, body, actor, now)


@router.delete("/users/{user_id}/tokens/{token_id}", status_code=204)
async def revoke_token_of_user(
    user_id: UserId,
    token_id: Annotated[str, Path()],
    _admin: AdminAccountCaller,
    actor: CallerActor,
    services: Shared,
    now: Now,
) -> Response:
    """Revoke a token of an account. Its event streams end."""
    return await _revoke(services, user_id, token_id, actor, now)


async def _list(services: Services, owner_id: str) -> TokenList:
    found = await token_accounts.list_tokens(services.engine, owner_id)
    return TokenList(items=[TokenView.of_token(token) for token in found])


async def _make(
    services: Services, maker: Credential, owner_id: str, body: NewTokenBody, actor: Actor, now: datetime
) -> MadeToken:
    token, secret = await token_accounts.make_token(
        services.engine, maker, owner_id, body.to_token(now), actor=actor, now=now
    )
    services.credential_lookup.remember(hash_token(secret))
    return MadeToken(**dict(TokenView.of_token(token)), token=secret)


async def _revoke(services: Services, owner_id: str, token_id: str, actor: Actor, now: datetime) -> Response:
    if not is_ulid(token_id):
        raise NotFound("There is no such token.")
    await token_accounts.revoke_token(services.engine, owner_id, token_id, actor=actor, now=now)
    return Response(status_code=204)
