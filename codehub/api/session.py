"""`/login`, `/logout`, `/session`: sign-in, sign-out and the current session."""

from datetime import datetime
from typing import Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.api.services import Config, Now, Shared
from codehub.api.views import UserView
from codehub.asgi.call_admission import admitted_credential, client_address
from codehub.asgi.callers import AccountCaller, AnyCaller, CallerActor
from codehub.asgi.fields import RequestBody, Secret, ShortText
from codehub.database import accounts, gate, sessions, workspace_queries
from codehub.database.archive_usage import archive_bytes
from codehub.database.credentials import Credential
from codehub.domain.problems import Forbidden
from codehub.domain.scopes import Scope

router = APIRouter(tags=["session"])


class SignIn(RequestBody):
    username: ShortText
    password: Secret


class PasswordChange(RequestBody):
    current: Secret
    new: Secret


class PasswordConfirmation(RequestBody):
    password: Secret


class SignedIn(BaseModel):
    user: UserView


class RunningLimits(BaseModel):
    max_running_per_user: int
    running: int


class ArchiveUsage(BaseModel):
    """Size of all archives of the user. `max_bytes` is null without a limit."""

    bytes: int
    max_bytes: int | None


class TtlDefaultsView(BaseModel):
    """Defaults of workspaces without their own. 0 means never, and that no CPU use keeps one awake."""

    standby_seconds: int
    archive_seconds: int
    awake_cpu_percent: int


class CallerTokenView(BaseModel):
    """The token that a call came with, and what it permits now."""

    id: str
    name: str
    scopes: list[Scope]
    workspaces: list[str] | None
    expires_at: datetime | None

    @classmethod
    def of_caller(cls, caller: Credential) -> "CallerTokenView | None":
        if caller.token is None:
            return None
        return cls(
            id=caller.token.id,
            name=caller.token.name,
            scopes=[scope for scope in Scope if scope in caller.scopes],
            workspaces=None if caller.workspaces is None else sorted(caller.workspaces),
            expires_at=caller.expires_at,
        )


class SessionView(BaseModel):
    """The caller. `token` is null for a session. A token bound to workspaces counts only those."""

    user: UserView
    token: CallerTokenView | None
    limits: RunningLimits
    archives: ArchiveUsage
    ttl: TtlDefaultsView
    apps_mode: Literal["origin", "path"]
    trash_retention_seconds: int


@router.post("/login")
async def login(body: SignIn, request: Request, response: Response, services: Shared, now: Now) -> SignedIn:
    """Sign in. The answer sets the cookie of the session, which lasts 24 hours."""
    if admitted_credential(request.scope) is not None:
        raise Forbidden("A token cannot sign in.")
    address = client_address(request)
    async with services.sign_in_limit.admit(address):
        signed_in = await accounts.sign_in(services.engine, body.username, body.password, address, now=now)
    await services.sign_in_limit.remember(signed_in.account.id, address)
    services.credential_lookup.remember(sessions.hash_session_id(signed_in.session_id))
    set_session_cookie(response, signed_in.session_id, services.config)
    return SignedIn(user=UserView.of_account(signed_in.account))


def set_session_cookie(response: Response, session_id: str, config: Config) -> None:
    response.set_cookie(
        config.cookie_name,
        session_id,
        max_age=int(sessions.LIFETIME.total_seconds()),
        path="/",
        secure=config.https,
        httponly=True,
        samesite="lax",
    )


@router.post("/logout", status_code=204)
async def logout(session: AccountCaller, services: Shared) -> Response:
    """End your session."""
    async with services.engine.begin() as conn:
        await sessions.end_session(conn, session.id_hash)
    response = Response(status_code=204)
    config = services.config
    response.delete_cookie(config.cookie_name, path="/", secure=config.https, httponly=True, samesite="lax")
    return response


@router.get("/session")
async def get_session(session: AnyCaller, services: Shared) -> SessionView:
    """Return who you are, what your token permits, and your limits."""
    config = services.config
    async with services.engine.connect() as conn:
        running = await _count_running(conn, session)
        archive_sizes = await archive_bytes(conn, [session.user_id], among=session.workspaces)
    return SessionView(
        user=UserView.of_credential(session),
        token=CallerTokenView.of_caller(session),
        limits=RunningLimits(max_running_per_user=config.limits.per_user, running=running),
        archives=ArchiveUsage(
            bytes=archive_sizes.get(session.user_id, 0),
            max_bytes=config.limits.archive_bytes_per_user or None,
        ),
        ttl=TtlDefaultsView(
            standby_seconds=config.ttl.standby,
            archive_seconds=config.ttl.archive,
            awake_cpu_percent=config.ttl.awake_cpu_percent,
        ),
        apps_mode="origin" if config.settings.apps_host else "path",
        trash_retention_seconds=config.settings.trash_retention_seconds,
    )


async def _count_running(conn: AsyncConnection, caller: Credential) -> int:
    if caller.workspaces is not None:
        return await workspace_queries.count_running(conn, caller.user_id, caller.workspaces)
    return (await gate.usage(conn, caller.user_id)).user


@router.post("/session/confirm", status_code=204)
async def confirm_password(
    body: PasswordConfirmation, session: AccountCaller, actor: CallerActor, services: Shared, now: Now
) -> Response:
    """Enter the password again, for the calls that answer with PASSWORD_REQUIRED."""
    async with services.sign_in_limit.admit(actor.address):
        await accounts.confirm_password(services.engine, session, body.password, actor=actor, now=now)
    return Response(status_code=204)


@router.post("/session/password", status_code=204)
async def change_password(
    body: PasswordChange, session: AccountCaller, actor: CallerActor, services: Shared, now: Now
) -> Response:
    """Change your own password. Your other sessions end. A wrong current one counts as a failed sign-in."""
    async with services.sign_in_limit.admit(actor.address):
        await accounts.change_own_password(
            services.engine, session, body.current, body.new, actor=actor, now=now
        )
    return Response(status_code=204)
