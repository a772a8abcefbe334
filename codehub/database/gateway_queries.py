"""Queries of the gateway: sessions, routes, and the data of its pages."""

import math
from dataclasses import dataclass
from datetime import datetime

import asyncpg
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.database import workspace_queries
from codehub.database.credentials import Credential, find_session, find_token
from codehub.database.engine import asyncpg_dsn
from codehub.database.index_predicates import COUNTED
from codehub.database.row_mapping import COLUMNS, to_workspaces
from codehub.database.tables import workspaces
from codehub.database.workspace_queries import RestorableArchive
from codehub.domain.disk import HomeRecord
from codehub.domain.states import Operation, Phase, Role
from codehub.domain.workspace import Workspace


@dataclass(frozen=True, slots=True)
class SessionUser:
    """User of a session or token, which ends at `expires_at` (seconds since the epoch)."""

    user_id: str
    username: str
    expires_at: float
    role: Role = Role.USER


@dataclass(frozen=True, slots=True)
class Route:
    """Route to a workspace.

    A change of any of these columns causes a `route_changed` notification.
    """

    workspace_id: str
    owner_id: str
    phase: Phase
    operation: Operation
    upstream: str | None
    image_ref: str


@dataclass(frozen=True)
class StatusPageData:
    """A workspace that cannot be connected to now, with the choices of its owner."""

    workspace: Workspace
    archives: list[RestorableArchive]
    home: HomeRecord | None = None


async def find_session_user(conn: AsyncConnection, id_hash: bytes, now: datetime) -> SessionUser | None:
    return _session_user(await find_session(conn, id_hash, now))


async def find_token_user(conn: AsyncConnection, token_hash: bytes, now: datetime) -> SessionUser | None:
    return _session_user(await find_token(conn, token_hash, now))


def _session_user(found: Credential | None) -> SessionUser | None:
    if found is None:
        return None
    expires_at = math.inf if found.expires_at is None else found.expires_at.timestamp()
    return SessionUser(found.user_id, found.username, expires_at, found.role)


async def find_route(conn: AsyncConnection, workspace_id: str) -> Route | None:
    """Return the route to a workspace, or None if it is deleted."""
    c = workspaces.c
    row = (
        await conn.execute(
            select(c.owner_id, c.phase, c.operation, c.upstream, c.image_ref).where(
                c.id == workspace_id, c.deleted_at.is_(None)
            )
        )
    ).first()
    if row is None:
        return None
    phase, operation = Phase(row.phase), Operation(row.operation)
    return Route(workspace_id, row.owner_id, phase, operation, row.upstream, row.image_ref)


async def find_status_page_data(conn: AsyncConnection, workspace_id: str) -> StatusPageData | None:
    found = await workspace_queries.find(conn, workspace_id)
    if found is None or found.workspace.deleted_at is not None:
        return None
    return StatusPageData(
        found.workspace, await workspace_queries.archives_of(conn, found.workspace), found.home
    )


async def counted_workspaces(conn: AsyncConnection, owner_id: str, *, besides: str) -> list[Workspace]:
    """Return the owner's workspaces that count against the limits: candidates for a stop."""
    counted = select(*COLUMNS).where(
        workspaces.c.owner_id == owner_id, text(COUNTED), workspaces.c.id != besides
    )
    return to_workspaces((await conn.execute(counted.order_by(workspaces.c.number))).mappings())


async def read_cookie_key(url: str) -> bytes:
    """Return the key of this installation's workspace cookies.

    The connection is closed afterwards: an idle worker needs no pool.
    """
    connection = await asyncpg.connect(asyncpg_dsn(url))
    try:
        return bytes(await connection.fetchval("SELECT cookie_key FROM installation"))
    finally:
        await connection.close()
