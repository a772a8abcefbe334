"""Access of callers to workspaces and users."""

from typing import Annotated

from fastapi import Depends, Path
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.database import workspace_queries
from codehub.database.credentials import Credential
from codehub.database.workspace_queries import DetailedWorkspace
from codehub.domain.audit import Target, TargetKind
from codehub.domain.ids import is_ulid
from codehub.domain.problems import Forbidden, NotFound, WorkspaceNotFound


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


def audit_target(owned: DetailedWorkspace) -> Target:
    return Target(TargetKind.WORKSPACE, owned.workspace.id, owned.workspace.name)


async def find_own_workspace(
    conn: AsyncConnection, caller: Credential, workspace_id: str
) -> DetailedWorkspace:
    """Return the caller's own workspace, unless it is deleted. Another user's gives 403."""
    caller.check_sees(workspace_id)
    owned = await _find_existing(conn, workspace_id)
    if owned.workspace.owner_id != caller.user_id:
        raise Forbidden("This workspace belongs to someone else.")
    return owned


async def find_workspace(conn: AsyncConnection, caller: Credential, workspace_id: str) -> DetailedWorkspace:
    """Return a workspace that is not deleted: for users their own, for admins any."""
    caller.check_sees(workspace_id)
    owned = await _find_existing(conn, workspace_id)
    _check_access(owned, caller)
    return owned


async def find_workspace_even_deleted(
    conn: AsyncConnection, caller: Credential, workspace_id: str
) -> DetailedWorkspace:
    """Like `find_workspace`, but also return workspaces in the trash."""
    caller.check_sees(workspace_id)
    owned = await workspace_queries.find(conn, workspace_id)
    if owned is None:
        raise WorkspaceNotFound
    _check_access(owned, caller)
    return owned


async def _find_existing(conn: AsyncConnection, workspace_id: str) -> DetailedWorkspace:
    owned = await workspace_queries.find(conn, workspace_id)
    if owned is None or owned.workspace.deleted_at is not None:
        raise WorkspaceNotFound
    return owned


def _check_access(owned: DetailedWorkspace, caller: Credential) -> None:
    if owned.workspace.owner_id != caller.user_id and not caller.is_admin:
        raise Forbidden("This workspace belongs to someone else.")
