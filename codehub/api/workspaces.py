"""`/workspaces`: create, read, change and delete workspaces."""

from contextlib import AsyncExitStack
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Response
from pydantic import Field
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.api.permissions import (
    WorkspaceId,
    audit_target,
    find_workspace,
    find_workspace_even_deleted,
)
from codehub.api.services import Config, Now, Shared
from codehub.api.views import WorkspacePage, WorkspaceView, detailed_view, summary
from codehub.asgi.callers import CallerActor, ManageCaller, ManageOrAdminCaller, ReadCaller
from codehub.asgi.fields import Description, Memo, Name, RequestBody, SearchText
from codehub.database import accounts, audit, gate, workspace_queries
from codehub.database.audit import AuditedTransaction
from codehub.database.credentials import Credential
from codehub.database.engine import set_statement_timeout
from codehub.database.workspace_queries import DetailedWorkspace, WorkspaceFilter
from codehub.domain.audit import Action
from codehub.domain.problems import Forbidden, Unauthorized, ValidationFailed, WorkspaceNotFound
from codehub.domain.scopes import Scope
from codehub.domain.states import DesiredState, Phase
from codehub.domain.ttl import MOST_AWAKE_CPU_PERCENT
from codehub.domain.workspace import Workspace

router = APIRouter(prefix="/workspaces", tags=["workspaces"])

SEARCH_SECONDS: Final = 2.0
Limit = Annotated[int, Query(ge=1, le=200)]
Offset = Annotated[int, Query(ge=0, le=1_000_000)]
RequestedState = Literal["RUNNING", "STANDBY", "ARCHIVED"]
Ttl = Annotated[int, Field(ge=0, le=31_536_000)]
AwakeCpu = Annotated[int, Field(ge=0, le=MOST_AWAKE_CPU_PERCENT)]


class NewWorkspace(RequestBody):
    name: Name
    description: Description = ""
    image_ref: Annotated[str, Field(max_length=64)] | None = None
    standby_ttl_seconds: Ttl | None = None
    archive_ttl_seconds: Ttl | None = None
    awake_cpu_percent: AwakeCpu | None = None
    desired_state: RequestedState = "RUNNING"


class WorkspaceChanges(RequestBody):
    """Changes of a workspace. A missing field stays. A TTL of null means the default, 0 never.

    More CPU use than `awake_cpu_percent`, on average over ten minutes and in percent of one core, keeps
    the workspace awake; 0 turns this off, null means the default.
    """

    name: Name = ""
    description: Description = ""
    memo: Memo = ""
    standby_ttl_seconds: Ttl | None = None
    archive_ttl_seconds: Ttl | None = None
    awake_cpu_percent: AwakeCpu | None = None
    desired_state: RequestedState = "RUNNING"

    @property
    def edits(self) -> dict[str, Any]:
        return self.model_dump(exclude_unset=True, exclude={"desired_state"})

    @property
    def requested_state(self) -> DesiredState | None:
        return DesiredState(self.desired_state) if "desired_state" in self.model_fields_set else None


@router.post("", status_code=201)
async def create_workspace(
    body: NewWorkspace, caller: ManageCaller, services: Shared, now: Now
) -> WorkspaceView:
    """Create a workspace. It starts, unless `desired_state` names another state.

    The answer does not wait for that.
    """
    caller.check_not_bound()
    config = services.config
    _check_standby_ttl(body.standby_ttl_seconds, config)
    image_ref = _choose_image(body.image_ref, config)
    async with services.engine.begin() as conn:
        if not await accounts.prevent_deletion(conn, caller.user_id):
            raise Unauthorized
        workspace = await gate.create(
            conn,
            owner_id=caller.user_id,
            name=body.name,
            description=body.description,
            image_ref=image_ref,
            standby_ttl=body.standby_ttl_seconds,
            archive_ttl=body.archive_ttl_seconds,
            awake_cpu_percent=body.awake_cpu_percent,
            desired=DesiredState(body.desired_state),
            actor=caller.actor_name,
            limits=config.limits,
            backends=config.settings.backends,
            now=now,
        )
        return await updated_view(conn, workspace.id, config, now)


@router.get("")
async def list_workspaces(
    caller: ReadCaller,
    services: Shared,
    now: Now,
    limit: Limit = 50,
    offset: Offset = 0,
    phase: Phase | None = None,
    q: Annotated[SearchText, Query()] = "",
    trash: bool = False,
) -> WorkspacePage:
    """Return a page of your workspaces, or with `trash` of your deleted ones. `q` searches their texts."""
    selection = WorkspaceFilter(caller.user_id, phase, tuple(q.split()), trash, caller.workspaces)
    return await workspace_page(services, caller, selection, limit, offset, now)


async def workspace_page(
    services: Shared,
    caller: Credential,
    selection: WorkspaceFilter,
    limit: int,
    offset: int,
    now: datetime,
) -> WorkspacePage:
    """Return a page. A search may read every memo: one at a time per user, with a short timeout."""
    async with AsyncExitStack() as stack:
        if selection.search_words:
            await stack.enter_async_context(services.searches_per_user.slot(caller.user_id))
        conn = await stack.enter_async_context(services.engine.connect())
        if selection.search_words:
            await set_statement_timeout(conn, SEARCH_SECONDS)
        items, total = await workspace_queries.list_page(conn, selection, limit, offset)
    return WorkspacePage(items=[summary(item, services.config, now) for item in items], total=total)


@router.get("/{workspace_id}")
async def get_workspace(
    workspace_id: WorkspaceId, caller: ReadCaller, services: Shared, now: Now
) -> WorkspaceView:
    """Return a workspace."""
    async with services.engine.connect() as conn:
        detailed = await find_workspace(conn, caller, workspace_id)
    return detailed_view(detailed, services.config, now)


@router.patch("/{workspace_id}")
async def change_workspace(
    workspace_id: WorkspaceId,
    body: WorkspaceChanges,
    caller: ManageOrAdminCaller,
    actor: CallerActor,
    services: Shared,
    now: Now,
) -> WorkspaceView:
    """Change the settings of a workspace, or the state that you want it in.

    The answer does not wait for that.
    """
    config = services.config
    _check_standby_ttl(body.standby_ttl_seconds, config)
    async with audit.transaction(services.engine, actor, now) as audited:
        owned = await find_workspace(audited.conn, caller, workspace_id)
        if owned.workspace.owner_id == caller.user_id and Scope.MANAGE in caller.scopes:
            await _change_own(audited.conn, workspace_id, body, caller, config, now)
        else:
            _check_only_stops(owned.workspace, body, caller)
            await _stop_as_admin(audited, owned, body, config)
        return await updated_view(audited.conn, workspace_id, config, now)


async def _change_own(
    conn: AsyncConnection,
    workspace_id: str,
    body: WorkspaceChanges,
    caller: Credential,
    config: Config,
    now: datetime,
) -> None:
    """Apply the desired state, then the edits: the gate locks the limits before the row."""
    if body.requested_state is not None:
        await gate.set_desired_state(
            conn,
            workspace_id,
            body.requested_state,
            actor=caller.actor_name,
            limits=config.limits,
            now=now,
            by_person=not caller.is_token,
        )
    if body.edits:
        await gate.edit(conn, workspace_id, body.edits, now=now)


async def updated_view(
    conn: AsyncConnection, workspace_id: str, config: Config, now: datetime
) -> WorkspaceView:
    """Return the workspace with the changes of this transaction, which has locked its row."""
    detailed = await workspace_queries.find(conn, workspace_id)
    if detailed is None:
        raise WorkspaceNotFound
    return detailed_view(detailed, config, now)


async def _stop_as_admin(
    audited: AuditedTransaction, owned: DetailedWorkspace, body: WorkspaceChanges, config: Config
) -> None:
    """Stop another user's workspace. The row may be locked first, because no limit applies to a stop."""
    if body.requested_state is None:
        return
    before = await gate.lock_workspace(audited.conn, owned.workspace.id)
    workspace = await gate.set_desired_state(
        audited.conn,
        before.id,
        body.requested_state,
        actor=audited.actor.name,
        limits=config.limits,
        now=audited.now,
    )
    if workspace.desired_state is not before.desired_state:
        await audited.record(
            Action.WORKSPACE_STOPPED,
            audit_target(owned),
            owner=owned.owner_name,
            desired_state=workspace.desired_state.value,
        )


def _check_only_stops(workspace: Workspace, body: WorkspaceChanges, caller: Credential) -> None:
    """Reject what an admin may not do with any workspace: everything but stops."""
    is_own = workspace.owner_id == caller.user_id
    why = 'This token lacks the scope "manage".' if is_own else "This workspace belongs to someone else."
    if body.edits:
        raise Forbidden(f"{why} An admin can stop it, but not edit it.")
    if body.requested_state is DesiredState.RUNNING:
        raise Forbidden(f"{why} An admin can stop it, but not start it.")
    if body.requested_state is DesiredState.STANDBY and workspace.phase in (Phase.ARCHIVED, Phase.PENDING):
        raise Forbidden(f"{why} An admin can stop it, but not restore it.")


@router.delete("/{workspace_id}", status_code=204)
async def delete_workspace(
    workspace_id: WorkspaceId,
    caller: ManageOrAdminCaller,
    actor: CallerActor,
    services: Shared,
    now: Now,
    without_archive: bool = False,
    confirm: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Move to the trash. With `without_archive` and the name in `confirm`, delete permanently."""
    async with audit.transaction(services.engine, actor, now) as audited:
        if without_archive:
            owned = await find_workspace_even_deleted(audited.conn, caller, workspace_id)
            before = owned.workspace.grace_waived_at
            after = await gate.delete_now(
                audited.conn, workspace_id, confirm, actor=caller.actor_name, now=now
            )
            if after.grace_waived_at != before:
                await audited.record(
                    Action.WORKSPACE_DELETED_FOR_GOOD, audit_target(owned), owner=owned.owner_name
                )
            return Response(status_code=204)
        owned = await find_workspace(audited.conn, caller, workspace_id)
        await gate.delete(audited.conn, workspace_id, actor=caller.actor_name, now=now)
        await audited.record(Action.WORKSPACE_DELETED, audit_target(owned), owner=owned.owner_name)
    return Response(status_code=204)


def _check_standby_ttl(seconds: int | None, config: Config) -> None:
    minimum = config.settings.minimum_standby_ttl
    if seconds and seconds < minimum:
        raise ValidationFailed(
            f"standby_ttl_seconds: must be at least {minimum}, because CodeHub needs that long to detect "
            "activity. 0 means never, null the default."
        )


def _choose_image(name: str | None, config: Config) -> str:
    chosen = name if name is not None else config.default_image
    names = [image.name for image in config.images]
    if not names:
        raise ValidationFailed(
            "image_ref: this runtime has no image to choose. Ask an admin to configure one."
        )
    if chosen not in names:
        raise ValidationFailed(f"image_ref: must be one of {', '.join(names)}.")
    return chosen
