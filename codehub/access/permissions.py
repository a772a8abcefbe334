"""Access of callers to workspaces."""

from typing import Annotated

from fastapi import Depends, Path
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.clock import utc_now
from codehub.database import credentials, exec_queries, workspace_queries
from codehub.database.credentials import Credential
from codehub.domain.execs import Exec
from codehub.domain.ids import is_ulid
from codehub.domain.problems import Forbidden, NotFound, Unauthorized, WorkspaceNotFound
from codehub.domain.workspace import Workspace


def _workspace_id(workspace_id: Annotated[str, Path()]) -> str:
    if not is_ulid(workspace_id):
        raise WorkspaceNotFound
    return workspace_id


def _exec_id(exec_id: Annotated[str, Path()]) -> str:
    if not is_ulid(exec_id):
        raise _no_such_command()
    return exec_id


WorkspaceId = Annotated[str, Depends(_workspace_id)]
ExecId = Annotated[str, Depends(_exec_id)]


async def find_own(conn: AsyncConnection, caller: Credential, workspace_id: str) -> Workspace:
    """Return the caller's own workspace, unless it is deleted. Another user's gives 403."""
    workspace = await find_visible(conn, caller, workspace_id)
    if workspace.owner_id != caller.user_id:
        raise Forbidden("This workspace belongs to someone else.")
    return workspace


async def find_visible(conn: AsyncConnection, caller: Credential, workspace_id: str) -> Workspace:
    """Return a workspace that is not deleted: for users their own, for admins any."""
    caller.check_sees(workspace_id)
    found = await workspace_queries.find_workspace(conn, workspace_id)
    if found is None or found.deleted_at is not None:
        raise WorkspaceNotFound
    if found.owner_id != caller.user_id and not caller.is_admin:
        raise Forbidden("This workspace belongs to someone else.")
    return found


async def find_own_exec(
    conn: AsyncConnection, caller: Credential, workspace_id: str, exec_id: str
) -> tuple[Workspace, Exec]:
    workspace = await find_own(conn, caller, workspace_id)
    return workspace, await find_exec(conn, workspace_id, exec_id)


async def find_exec(conn: AsyncConnection, workspace_id: str, exec_id: str) -> Exec:
    row = await exec_queries.find(conn, workspace_id, exec_id)
    if row is None:
        raise _no_such_command()
    return row


async def check_credential(conn: AsyncConnection, caller: Credential) -> None:
    """Raise Unauthorized if the credential was revoked while its call waited."""
    if not await credentials.is_unchanged(conn, caller, utc_now()):
        raise Unauthorized("Your session or token has ended. Sign in again, or use another token.")


def _no_such_command() -> NotFound:
    return NotFound("There is no such command: its id is wrong, or it was forgotten.")
