"""Who is calling, and what they may do to a workspace."""

import re
from collections.abc import AsyncIterator
from typing import Annotated, Final

from fastapi import Depends, Path, Request
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.api.services import Now, Shared
from codehub.database import workspace_queries
from codehub.database.sessions import Session, find_session, hash_of
from codehub.database.workspace_queries import DetailedWorkspace
from codehub.domain.audit import Actor, Target, TargetKind
from codehub.domain.problems import Forbidden, NotFound, Unauthorized, WorkspaceNotFound

ULID_FORM: Final = re.compile(r"[0-7][0-9a-hjkmnp-tv-z]{25}")


async def _current_session(request: Request, services: Shared, now: Now) -> AsyncIterator[Session]:
    """The caller's session. The call takes one of its user's turns until it has its answer."""
    session_id = request.cookies.get(services.config.cookie_name)
    if not session_id:
        raise Unauthorized
    id_hash = hash_of(session_id)

    async def look_up() -> Session | None:
        async with services.engine.connect() as conn:
            return await find_session(conn, id_hash, now)

    async with services.session_turns.turn(id_hash):
        session = await services.session_lookups.find(id_hash, client_address(request), look_up)
    if session is None:
        raise Unauthorized("Your session is over. Sign in again.")
    async with services.calls.turn(session.user_id):
        yield session


Caller = Annotated[Session, Depends(_current_session, scope="function")]


async def _admin(session: Caller) -> Session:
    if not session.is_admin:
        raise Forbidden("Only an admin may do this.")
    return session


Admin = Annotated[Session, Depends(_admin)]


def _workspace_id(workspace_id: Annotated[str, Path()]) -> str:
    if not ULID_FORM.fullmatch(workspace_id):
        raise WorkspaceNotFound
    return workspace_id


def _user_id(user_id: Annotated[str, Path()]) -> str:
    if not ULID_FORM.fullmatch(user_id):
        raise NotFound("There is no such user.")
    return user_id


WorkspaceId = Annotated[str, Depends(_workspace_id)]
UserId = Annotated[str, Depends(_user_id)]


def client_address(request: Request) -> str:
    """What the gateway says: only it reaches this socket, and its entry is the last one."""
    forwarded = request.headers.get("x-forwarded-for", "")
    return forwarded.rsplit(",", 1)[-1].strip()


def _actor(request: Request, session: Caller) -> Actor:
    return Actor.person(session.user_id, session.username, session.role, client_address(request))


CallerActor = Annotated[Actor, Depends(_actor)]
"""The caller, as the audit log names them."""


def audit_target(owned: DetailedWorkspace) -> Target:
    return Target(TargetKind.WORKSPACE, owned.workspace.id, owned.workspace.name)


async def reach_own(conn: AsyncConnection, session: Session, workspace_id: str) -> DetailedWorkspace:
    """The caller's own living workspace. What exists and is another's is 403, as at the gateway."""
    owned = await _living(conn, workspace_id)
    if owned.workspace.owner_id != session.user_id:
        raise Forbidden("This workspace belongs to someone else.")
    return owned


async def reach(conn: AsyncConnection, session: Session, workspace_id: str) -> DetailedWorkspace:
    """A living workspace that is the caller's own, or any for an admin."""
    owned = await _living(conn, workspace_id)
    _refuse_others(owned, session)
    return owned


async def reach_even_deleted(conn: AsyncConnection, session: Session, workspace_id: str) -> DetailedWorkspace:
    """As `reach`, but the trash counts as well."""
    owned = await workspace_queries.find(conn, workspace_id)
    if owned is None:
        raise WorkspaceNotFound
    _refuse_others(owned, session)
    return owned


async def _living(conn: AsyncConnection, workspace_id: str) -> DetailedWorkspace:
    owned = await workspace_queries.find(conn, workspace_id)
    if owned is None or owned.workspace.deleted_at is not None:
        raise WorkspaceNotFound
    return owned


def _refuse_others(owned: DetailedWorkspace, session: Session) -> None:
    if owned.workspace.owner_id != session.user_id and not session.is_admin:
        raise Forbidden("This workspace belongs to someone else.")
