"""`/login`, `/logout`, `/session`: sign-in, sign-out and the current session."""

from typing import Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from codehub.api.services import Config, Now, Shared
from codehub.api.views import UserView
from codehub.asgi.call_admission import admitted_credential, client_address
from codehub.asgi.callers import AccountCaller, AnyCaller, CallerActor
from codehub.asgi.fields import RequestBody, Secret, ShortText
from codehub.database import accounts, gate, sessions
from codehub.database.archive_usage import archive_bytes
from codehub.domain.problems import Forbidden

router = APIRouter(tags=["session"])


class SignIn(RequestBody):
    username: ShortText
    password: Secret


class PasswordChange(RequestBody):
    current: Secret
    new: Secret


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
    standby_seconds: int
    archive_seconds: int


class SessionView(BaseModel):
    user: UserView
    limits: RunningLimits
    archives: ArchiveUsage
    ttl: TtlDefaultsView
    apps_mode: Literal["origin", "path"]
    trash_retention_seconds: int


@router.post("/login")
async def login(body: SignIn, request: Request, response: Response, services: Shared, now: Now) -> SignedIn:
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
    async with services.engine.begin() as conn:
        await sessions.end_session(conn, session.id_hash)
    response = Response(status_code=204)
    config = services.config
    response.delete_cookie(config.cookie_name, path="/", secure=config.https, httponly=True, samesite="lax")
    return response


@router.get("/session")
async def get_session(session: AnyCaller, services: Shared) -> SessionView:
    config = services.config
    async with services.engine.connect() as conn:
        usage = await gate.usage(conn, session.user_id)
        archive_sizes = await archive_bytes(conn, [session.user_id])
    return SessionView(
        user=UserView.of_credential(session),
        limits=RunningLimits(max_running_per_user=config.limits.per_user, running=usage.user),
        archives=ArchiveUsage(
            bytes=archive_sizes.get(session.user_id, 0),
            max_bytes=config.limits.archive_bytes_per_user or None,
        ),
        ttl=TtlDefaultsView(standby_seconds=config.ttl.standby, archive_seconds=config.ttl.archive),
        apps_mode="origin" if config.settings.apps_host else "path",
        trash_retention_seconds=config.settings.trash_retention_seconds,
    )


@router.post("/session/password", status_code=204)
async def change_password(
    body: PasswordChange, session: AccountCaller, actor: CallerActor, services: Shared, now: Now
) -> Response:
    async with services.sign_in_limit.admit(actor.address):
        await accounts.change_own_password(
            services.engine, session, body.current, body.new, actor=actor, now=now
        )
    return Response(status_code=204)
