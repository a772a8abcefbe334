"""`/admin`: all workspaces, and an overview of the installation. For admins."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from codehub import health_endpoints
from codehub.api.services import Now, Shared
from codehub.api.views import WorkspacePage, WorkspaceSummary, summary
from codehub.api.workspaces import Limit, Offset, workspace_page
from codehub.asgi.callers import AdminCaller
from codehub.asgi.fields import SearchText
from codehub.database import gate, workspace_queries
from codehub.database.workspace_queries import LeaderStatus, WorkspaceFilter
from codehub.domain.health_checks import CheckName
from codehub.domain.states import Phase

router = APIRouter(prefix="/admin", tags=["admin"])


class LimitsView(BaseModel):
    max_running_per_user: int
    max_running_global: int


class LeaderView(BaseModel):
    holder: str
    epoch: int
    heartbeat_at: datetime | None


class CheckView(BaseModel):
    ok: bool
    message: str
    remedy: str


class OverviewView(BaseModel):
    phases: dict[Phase, int]
    running: int
    limits: LimitsView
    users: int
    leader: LeaderView | None
    errors: list[WorkspaceSummary]
    checks: dict[CheckName, CheckView]
    insecure_http: bool
    wide_trusted_proxies: bool


@router.get("/workspaces")
async def list_all_workspaces(
    admin: AdminCaller,
    services: Shared,
    now: Now,
    limit: Limit = 50,
    offset: Offset = 0,
    phase: Phase | None = None,
    q: Annotated[SearchText, Query()] = "",
    trash: bool = False,
) -> WorkspacePage:
    """Return a page of the workspaces of all users."""
    selection = WorkspaceFilter(None, phase, tuple(q.split()), trash)
    return await workspace_page(services, admin, selection, limit, offset, now)


@router.get("/overview")
async def get_overview(admin: AdminCaller, services: Shared, now: Now) -> OverviewView:
    """Return an overview of the installation. `running` counts workspaces as the limits do."""
    config = services.config
    async with services.engine.connect() as conn:
        overview = await workspace_queries.read_overview(conn)
        usage = await gate.usage(conn, admin.user_id)
    health = await health_endpoints.check_readiness(config.settings.database_url, config.settings.redis_url)
    return OverviewView(
        phases=overview.phases,
        running=usage.everyone,
        limits=LimitsView(
            max_running_per_user=config.limits.per_user, max_running_global=config.limits.everyone
        ),
        users=overview.users,
        leader=_leader_view(overview.leader),
        errors=[summary(owned, config, now) for owned in overview.errors],
        checks={
            name: CheckView(ok=check.ok, message=check.message, remedy=check.remedy)
            for name, check in health.checks.items()
        },
        insecure_http=config.settings.insecure_http,
        wide_trusted_proxies=bool(config.settings.wide_proxies),
    )


def _leader_view(leader: LeaderStatus | None) -> LeaderView | None:
    if leader is None:
        return None
    return LeaderView(holder=leader.holder, epoch=leader.epoch, heartbeat_at=leader.heartbeat_at)
