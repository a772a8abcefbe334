"""`/workspaces/{id}/...`: actions on a workspace, its timeline and its archives."""

from datetime import datetime, timedelta
from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from codehub.api.permissions import (
    WorkspaceId,
    audit_target,
    find_own_workspace,
    find_workspace,
    find_workspace_even_deleted,
)
from codehub.api.services import Now, Shared
from codehub.api.views import WorkspaceView
from codehub.api.workspaces import updated_view
from codehub.asgi.callers import CallerActor, ManageCaller, ManageOrAdminCaller, ReadCaller
from codehub.asgi.fields import RequestBody
from codehub.database import accounts, audit, gate, workspace_queries
from codehub.domain.audit import Action
from codehub.domain.problems import InvalidState, ValidationFailed
from codehub.domain.states import Operation
from codehub.domain.workspace import RecoverSource

router = APIRouter(prefix="/workspaces/{workspace_id}", tags=["workspaces"])


ArchiveId = Annotated[str, Field(pattern=r"^[0-9a-z]{26}$")]


class EmptyBody(RequestBody):
    """A body without fields."""


class Recovery(RequestBody):
    """What to recover from. Without `from`, the home stays as it is. A lost home needs a choice."""

    source: Literal["archive", "empty"] | None = Field(default=None, alias="from")
    archive_op_id: ArchiveId | None = None

    @property
    def recover_from(self) -> gate.RecoverFrom | None:
        if self.source is None:
            if self.archive_op_id is not None:
                raise ValidationFailed('archive_op_id is allowed only with "from": "archive".')
            return None
        return gate.RecoverFrom(RecoverSource(self.source), self.archive_op_id)


class Restore(RequestBody):
    """The archive to restore. The present home is archived first, and kept."""

    archive_op_id: ArchiveId


class Extension(RequestBody):
    seconds: Annotated[int, Field(ge=1, le=604_800)]


class TimelineItem(BaseModel):
    at: datetime
    actor: str
    event: str
    message: str
    operation: Operation | None


class Timeline(BaseModel):
    items: list[TimelineItem]


class ArchiveItem(BaseModel):
    archive_op_id: str
    created_at: datetime
    bytes: int
    current: bool


class ArchiveList(BaseModel):
    items: list[ArchiveItem]


@router.post("/recover")
async def recover_workspace(
    workspace_id: WorkspaceId,
    caller: ManageOrAdminCaller,
    actor: CallerActor,
    services: Shared,
    now: Now,
    body: Recovery | None = None,
) -> WorkspaceView:
    """Let a workspace in ERROR try again. A home that was lost needs a choice of what to begin with."""
    source = (body or Recovery()).recover_from
    config = services.config
    async with audit.transaction(services.engine, actor, now) as audited:
        owned = await find_workspace(audited.conn, caller, workspace_id)
        await gate.recover(
            audited.conn,
            workspace_id,
            actor=caller.actor_name,
            limits=config.limits,
            source=source,
            now=now,
            by_person=not caller.is_token,
        )
        await audited.record(
            Action.WORKSPACE_RECOVERED,
            audit_target(owned),
            owner=owned.owner_name,
            **gate.audit_details(source),
        )
        return await updated_view(audited.conn, workspace_id, config, now)


@router.post("/restore")
async def restore_archive(
    workspace_id: WorkspaceId,
    body: Restore,
    caller: ManageCaller,
    actor: CallerActor,
    services: Shared,
    now: Now,
) -> WorkspaceView:
    """Restore a chosen archive of a stopped or archived workspace. The present home becomes an archive."""
    chosen = body.archive_op_id
    async with audit.transaction(services.engine, actor, now) as audited:
        owned = await find_own_workspace(audited.conn, caller, workspace_id)
        await gate.restore(audited.conn, workspace_id, chosen, actor=caller.actor_name, now=now)
        if owned.workspace.archive_to_restore != chosen:
            target = audit_target(owned)
            await audited.record(
                Action.WORKSPACE_RESTORED, target, owner=owned.owner_name, archive_op_id=chosen
            )
        return await updated_view(audited.conn, workspace_id, services.config, now)


@router.post("/cancel")
async def cancel_operation(
    workspace_id: WorkspaceId, caller: ManageCaller, services: Shared, now: Now, body: EmptyBody | None = None
) -> WorkspaceView:
    """End an operation that takes too long. The workspace stays where it stands, and loses nothing."""
    async with services.engine.begin() as conn:
        await find_own_workspace(conn, caller, workspace_id)
        await gate.cancel(conn, workspace_id, actor=caller.actor_name, now=now)
        return await updated_view(conn, workspace_id, services.config, now)


@router.post("/undelete")
async def undelete_workspace(
    workspace_id: WorkspaceId,
    caller: ManageOrAdminCaller,
    actor: CallerActor,
    services: Shared,
    now: Now,
    body: EmptyBody | None = None,
) -> WorkspaceView:
    """Bring a workspace back from the trash."""
    config = services.config
    async with audit.transaction(services.engine, actor, now) as audited:
        owned = await find_workspace_even_deleted(audited.conn, caller, workspace_id)
        if not await accounts.prevent_deletion(audited.conn, owned.workspace.owner_id):
            raise InvalidState("The owner of this workspace was deleted, so it cannot be restored.")
        await gate.undelete(
            audited.conn,
            workspace_id,
            actor=caller.actor_name,
            limits=config.limits,
            now=now,
            by_person=not caller.is_token,
        )
        await audited.record(Action.WORKSPACE_UNDELETED, audit_target(owned), owner=owned.owner_name)
        return await updated_view(audited.conn, workspace_id, config, now)


@router.post("/extend")
async def extend_workspace(
    workspace_id: WorkspaceId, body: Extension, caller: ManageCaller, services: Shared, now: Now
) -> WorkspaceView:
    """Keep a workspace from its next stop or archive for so many seconds longer."""
    by, defaults = timedelta(seconds=body.seconds), services.config.ttl
    async with services.engine.begin() as conn:
        await find_own_workspace(conn, caller, workspace_id)
        await gate.extend(
            conn,
            workspace_id,
            by=by,
            defaults=defaults,
            actor=caller.actor_name,
            now=now,
            by_person=not caller.is_token,
        )
        return await updated_view(conn, workspace_id, services.config, now)


@router.get("/timeline")
async def get_timeline(workspace_id: WorkspaceId, caller: ReadCaller, services: Shared) -> Timeline:
    """Return what happened to a workspace, newest first: when, why and by whom."""
    async with services.engine.connect() as conn:
        await find_workspace_even_deleted(conn, caller, workspace_id)
        entries = await workspace_queries.timeline_of(conn, workspace_id)
    return Timeline(items=[TimelineItem(**vars(entry)) for entry in entries])


@router.get("/archives")
async def get_archives(workspace_id: WorkspaceId, caller: ReadCaller, services: Shared) -> ArchiveList:
    """Return the archives of a workspace that are kept, newest first."""
    async with services.engine.connect() as conn:
        owned = await find_workspace_even_deleted(conn, caller, workspace_id)
        found = await workspace_queries.archives_of(conn, owned.workspace)
    return ArchiveList(items=[ArchiveItem(**vars(archive)) for archive in found])
