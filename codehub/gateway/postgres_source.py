"""PostgreSQL as the source of the route cache, and the gate for the pages' actions."""

from collections.abc import Callable

from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.clock import utc_now
from codehub.database import audit, gate, gateway_queries
from codehub.database.gate import RecoverFrom
from codehub.database.gateway_queries import Route, SessionUser, StatusPageData
from codehub.domain.audit import Action, Actor, Target, TargetKind
from codehub.domain.states import DesiredState
from codehub.domain.user_limits import Limits
from codehub.domain.workspace import Workspace


class PostgresSource:
    """Source of sessions, tokens and routes that reads PostgreSQL."""

    def __init__(self, engine: AsyncEngine, limits: Limits, count_wake: Callable[[], None]) -> None:
        self._engine = engine
        self._limits = limits
        self._count_wake = count_wake

    async def session_user(self, id_hash: bytes) -> SessionUser | None:
        async with self._engine.connect() as conn:
            return await gateway_queries.find_session_user(conn, id_hash, utc_now())

    async def token_user(self, token_hash: bytes) -> SessionUser | None:
        async with self._engine.connect() as conn:
            return await gateway_queries.find_token_user(conn, token_hash, utc_now())

    async def route(self, workspace_id: str) -> Route | None:
        async with self._engine.connect() as conn:
            return await gateway_queries.find_route(conn, workspace_id)

    async def status_page_data(self, workspace_id: str) -> StatusPageData | None:
        async with self._engine.connect() as conn:
            return await gateway_queries.find_status_page_data(conn, workspace_id)

    async def counted_workspaces(self, owner_id: str, *, besides: str) -> list[Workspace]:
        async with self._engine.connect() as conn:
            return await gateway_queries.counted_workspaces(conn, owner_id, besides=besides)

    async def wake(self, workspace_id: str, actor: str) -> None:
        if await self._set_desired_state(workspace_id, DesiredState.RUNNING, actor):
            self._count_wake()

    async def stop(self, workspace_id: str, actor: str) -> None:
        await self._set_desired_state(workspace_id, DesiredState.STANDBY, actor)

    async def recover(self, workspace_id: str, owner: Actor, source: RecoverFrom | None) -> None:
        async with audit.transaction(self._engine, owner, utc_now()) as act:
            found = await gate.recover(
                act.conn, workspace_id, actor=owner.name, limits=self._limits, source=source, now=act.now
            )
            target = Target(TargetKind.WORKSPACE, found.id, found.name)
            details = gate.audit_details(source)
            await act.record(Action.WORKSPACE_RECOVERED, target, owner=owner.name, **details)

    async def _set_desired_state(self, workspace_id: str, desired: DesiredState, actor: str) -> bool:
        """Return whether this changed anything."""
        now = utc_now()
        async with self._engine.begin() as conn:
            workspace = await gate.set_desired_state(
                conn, workspace_id, desired, actor=actor, limits=self._limits, now=now
            )
        return workspace.updated_at == now
