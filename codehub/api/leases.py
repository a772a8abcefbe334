"""`/workspaces/{id}/leases`: promises to keep a running workspace awake until a time."""

from datetime import datetime, timedelta
from typing import Annotated, Final

from fastapi import APIRouter, Response
from pydantic import AfterValidator, BaseModel, Field, StringConstraints

from codehub.api.permissions import WorkspaceId, find_own_workspace
from codehub.api.services import Config, Now, Shared
from codehub.asgi.callers import UseCaller
from codehub.asgi.fields import ONE_LINE, RequestBody, check_one_line
from codehub.database import lease_gate
from codehub.domain.awake import Lease
from codehub.domain.ids import is_ulid
from codehub.domain.problems import NotFound, ValidationFailed

router = APIRouter(prefix="/workspaces/{workspace_id}/leases", tags=["leases"])

MOST_SECONDS: Final = 31_536_000
Length = Annotated[int, Field(ge=1, le=MOST_SECONDS)]
Reason = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=200),
    AfterValidator(check_one_line),
    ONE_LINE,
]


class NewLease(RequestBody):
    """A lease. The reason is shown to the owner of the workspace."""

    seconds: Length
    reason: Reason


class Renewal(RequestBody):
    """A new time to expire, counted from now."""

    seconds: Length


class LeaseView(BaseModel):
    id: str
    reason: str
    actor: str
    created_at: datetime
    expires_at: datetime

    @classmethod
    def of(cls, lease: Lease) -> "LeaseView":
        return cls(
            id=lease.id,
            reason=lease.reason,
            actor=lease.actor_name,
            created_at=lease.created_at,
            expires_at=lease.expires_at,
        )


class LeaseList(BaseModel):
    items: list[LeaseView]


def _lease_id(lease_id: str) -> str:
    if not is_ulid(lease_id):
        raise NotFound("There is no such lease.")
    return lease_id


@router.post("", status_code=201)
async def create_lease(
    workspace_id: WorkspaceId, body: NewLease, caller: UseCaller, services: Shared, now: Now
) -> LeaseView:
    """Keep a running workspace awake. It does not start one: that answers 409."""
    length = _length(body.seconds, services.config)
    async with services.engine.begin() as conn:
        await find_own_workspace(conn, caller, workspace_id)
        lease = await lease_gate.create_lease(
            conn,
            workspace_id,
            actor_id=caller.user_id,
            actor=caller.actor_name,
            reason=body.reason,
            length=length,
            now=now,
        )
    return LeaseView.of(lease)


@router.get("")
async def list_leases(workspace_id: WorkspaceId, caller: UseCaller, services: Shared, now: Now) -> LeaseList:
    """Return the leases of a workspace that have not expired."""
    async with services.engine.connect() as conn:
        await find_own_workspace(conn, caller, workspace_id)
        found = await lease_gate.list_leases(conn, workspace_id, now)
    return LeaseList(items=[LeaseView.of(lease) for lease in found])


@router.put("/{lease_id}")
async def renew_lease(
    workspace_id: WorkspaceId, lease_id: str, body: Renewal, caller: UseCaller, services: Shared, now: Now
) -> LeaseView:
    """Let a lease expire this many seconds from now, earlier or later than before."""
    length = _length(body.seconds, services.config)
    async with services.engine.begin() as conn:
        await find_own_workspace(conn, caller, workspace_id)
        lease = await lease_gate.renew_lease(conn, workspace_id, _lease_id(lease_id), length=length, now=now)
    return LeaseView.of(lease)


@router.delete("/{lease_id}", status_code=204)
async def delete_lease(
    workspace_id: WorkspaceId, lease_id: str, caller: UseCaller, services: Shared, now: Now
) -> Response:
    """End a lease. The standby TTL counts from now, unless something else keeps the workspace awake."""
    async with services.engine.begin() as conn:
        await find_own_workspace(conn, caller, workspace_id)
        await lease_gate.end_lease(conn, workspace_id, _lease_id(lease_id), actor=caller.actor_name, now=now)
    return Response(status_code=204)


def _length(seconds: int, config: Config) -> timedelta:
    most = config.settings.limits_max_lease_seconds
    if seconds > most:
        raise ValidationFailed(f"seconds: must be at most {most}. Renew the lease before it expires.")
    return timedelta(seconds=seconds)
