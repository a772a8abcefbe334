"""Authentication of the caller, and access to workspaces."""

from typing import Annotated

from fastapi import Depends, Path, Request
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.api.call_admission import admitted_session, client_address
from codehub.api.services import Shared
from codehub.database import workspace_queries
from codehub.database.sessions import Session
from codehub.database.workspace_queries import DetailedWorkspace
from codehub.domain.audit import Actor, Target, TargetKind
from codehub.domain.ids import is_ulid
from codehub.domain.problems import Forbidden, NotFound, Unauthorized, WorkspaceNotFound


def _current_session(request: Request, services: Shared) -> Session:
    """Return the caller's session."""
    session = admitted_session(request.scope)
    if session is not None:
        return session
    if request.cookies.get(services.config.cookie_name):
        raise Unauthorized("Your session has ended. Sign in again.")
    raise Unauthorized


Caller = Annotated[Session, Depends(_current_session)]


async def _admin(session: Caller) -> Session:
    if not session.is_admin:
        raise Forbidden("Only an admin may do this.")
    return session


Admin = Annotated[Session, Depends(_admin)]


def _workspace_id(workspace_id: Annotated[str, Path()]) -> str:
    if not is_ulid(workspace_id):
        raise WorkspaceNotFound
    return workspace_id


def _user_id(user_id: Annotated[str, Path()]) -> str:
    if not is_ulid(user_id):
        raise NotFound("There is no such user.")
    return user_id


WorkspaceId = Annotated[str, Depends(_workspace_id)]
UserId = Annotated[str, Depends(_user_id)]


def _actor(request: Request, session: Caller) -> Actor:
    return Actor.person(session.user_id, session.username, session.role, client_address(request))


CallerActor = Annotated[Actor, Depends(_actor)]
"""The caller, as recorded in the audit log."""


def audit_target(owned: DetailedWorkspace) -> Target:
    return Target(TargetKind.WORKSPACE, owned.workspace.id, owned.workspace.name)


async def find_own_workspace(conn: AsyncConnection, session: Session, workspace_id: str) -> DetailedWorkspace:
    """Return the caller's own workspace, unless it is deleted. Another user's gives 403."""
    owned = await _find_existing(conn, workspace_id)
    if owned.workspace.owner_id != session.user_id:
        raise Forbidden("This workspace belongs to someone else.")
    return owned


async def find_workspace(conn: AsyncConnection, session: Session, workspace_id: str) -> DetailedWorkspace:
    """Return a workspace that is not deleted: for users their own, for admins any."""
    owned = await _find_existing(conn, workspace_id)
    _check_access(owned, session)
    return owned


async def find_workspace_even_deleted(
    conn: AsyncConnection, session: Session, workspace_id: str
) -> DetailedWorkspace:
    """Like `find_workspace`, but also return workspaces in the trash."""
    owned = await workspace_queries.find(conn, workspace_id)
    if owned is None:
        raise WorkspaceNotFound
    _check_access(owned, session)
    return owned


async def _find_existing(conn: AsyncConnection, workspace_id: str) -> DetailedWorkspace:
    owned = await workspace_queries.find(conn, workspace_id)
    if owned is None or owned.workspace.deleted_at is not None:
        raise WorkspaceNotFound
    return owned


def _check_access(owned: DetailedWorkspace, session: Session) -> None:
    if owned.workspace.owner_id != session.user_id and not session.is_admin:
        raise Forbidden("This workspace belongs to someone else.")
