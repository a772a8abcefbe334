"""`/admin`: the whole installation at a glance. For admins."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from codehub import readiness
from codehub.api.fields import SearchText
from codehub.api.permissions import Admin
from codehub.api.services import Shared
from codehub.api.views import WorkspacePage, WorkspaceSummary, summary
from codehub.api.workspaces import Limit, Offset, page_of
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
    admin: Admin,
    services: Shared,
    limit: Limit = 50,
    offset: Offset = 0,
    phase: Phase | None = None,
    q: Annotated[SearchText, Query()] = "",
    trash: bool = False,
) -> WorkspacePage:
    return await page_of(services, admin, WorkspaceFilter(None, phase, tuple(q.split()), trash), limit, offset)


@router.get("/overview")
async def get_overview(admin: Admin, services: Shared) -> OverviewView:
    """`running` counts as the limits do: what is wished to run, and whatever still has a container."""
    config = services.config
    async with services.engine.connect() as conn:
        seen = await workspace_queries.overview(conn)
        usage = await gate.usage(conn, admin.user_id)
    health = await readiness.look(config.settings.database_url, config.settings.redis_url)
    return OverviewView(
        phases=seen.phases,
        running=usage.everyone,
        limits=LimitsView(
            max_running_per_user=config.limits.per_user, max_running_global=config.limits.everyone
        ),
        users=seen.users,
        leader=_leader_view(seen.leader),
        errors=[summary(owned, config) for owned in seen.errors],
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
