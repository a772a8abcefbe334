"""`/workspaces`: make, read, change, delete."""

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import Field
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.api.guards import Caller, CallerActor, WorkspaceId, audit_target, reach
from codehub.api.services import Config, Now, Shared
from codehub.api.views import WorkspacePage, WorkspaceView, owned_view, workspace_view
from codehub.api.words import Body, Description, Memo, Name, Words
from codehub.domain.audit import Action
from codehub.domain.problems import Forbidden, Unauthorized, ValidationFailed
from codehub.domain.states import DesiredState, Phase
from codehub.domain.workspace import Workspace
from codehub.store import accounts, audit, gate, workspace_reads
from codehub.store.audit import AuditedTransaction
from codehub.store.sessions import Session
from codehub.store.workspace_reads import OwnedWorkspace, Selection

router = APIRouter(prefix="/workspaces", tags=["workspaces"])

Limit = Annotated[int, Query(ge=1, le=200)]
Offset = Annotated[int, Query(ge=0, le=1_000_000)]
Wish = Literal["RUNNING", "STANDBY", "ARCHIVED"]
Ttl = Annotated[int, Field(ge=0, le=31_536_000)]


class NewWorkspace(Body):
    name: Name
    description: Description = ""
    image_ref: Annotated[str, Field(max_length=64)] | None = None
    standby_ttl_seconds: Ttl | None = None
    archive_ttl_seconds: Ttl | None = None
    desired_state: Wish = "RUNNING"


class WorkspaceChanges(Body):
    """What is left out stays as it is; a TTL of null is the default, of 0 never."""

    name: Name = ""
    description: Description = ""
    memo: Memo = ""
    standby_ttl_seconds: Ttl | None = None
    archive_ttl_seconds: Ttl | None = None
    desired_state: Wish = "RUNNING"

    @property
    def edits(self) -> dict[str, Any]:
        return self.model_dump(exclude_unset=True, exclude={"desired_state"})

    @property
    def wish(self) -> DesiredState | None:
        return DesiredState(self.desired_state) if "desired_state" in self.model_fields_set else None


@router.post("", status_code=201)
async def create_workspace(body: NewWorkspace, session: Caller, services: Shared, now: Now) -> WorkspaceView:
    config = services.config
    _check_standby_ttl(body.standby_ttl_seconds, config)
    image_ref = _choose_image(body.image_ref, config)
    async with services.engine.begin() as conn:
        if not await accounts.hold(conn, session.user_id):
            raise Unauthorized
        workspace = await gate.create(
            conn,
            owner_id=session.user_id,
            name=body.name,
            description=body.description,
            image_ref=image_ref,
            standby_ttl=body.standby_ttl_seconds,
            archive_ttl=body.archive_ttl_seconds,
            desired=DesiredState(body.desired_state),
            actor=session.username,
            limits=config.limits,
            backends=config.settings.backends,
            now=now,
        )
    return workspace_view(workspace, session.username, config)


@router.get("")
async def list_workspaces(
    session: Caller,
    services: Shared,
    limit: Limit = 50,
    offset: Offset = 0,
    phase: Phase | None = None,
    q: Annotated[Words, Query()] = "",
    trash: bool = False,
) -> WorkspacePage:
    selection = Selection(session.user_id, phase, q, trash)
    return await page_of(services, selection, limit, offset)


async def page_of(services: Shared, selection: Selection, limit: int, offset: int) -> WorkspacePage:
    async with services.engine.connect() as conn:
        items, total = await workspace_reads.list_page(conn, selection, limit, offset)
    return WorkspacePage(items=[owned_view(item, services.config) for item in items], total=total)


@router.get("/{workspace_id}")
async def get_workspace(workspace_id: WorkspaceId, session: Caller, services: Shared) -> WorkspaceView:
    async with services.engine.connect() as conn:
        owned = await reach(conn, session, workspace_id)
    return owned_view(owned, services.config)


@router.patch("/{workspace_id}")
async def change_workspace(
    workspace_id: WorkspaceId,
    body: WorkspaceChanges,
    session: Caller,
    actor: CallerActor,
    services: Shared,
    now: Now,
) -> WorkspaceView:
    config = services.config
    _check_standby_ttl(body.standby_ttl_seconds, config)
    async with audit.transaction(services.engine, actor, now) as act:
        owned = await reach(act.conn, session, workspace_id)
        if owned.workspace.owner_id == session.user_id:
            changed = await _change(act.conn, owned, body, session, config, now)
        else:
            _refuse_beyond_stopping(owned.workspace, body)
            changed = await _stop_as_admin(act, owned, body, config)
    return workspace_view(changed, owned.owner_name, config, owned.home)


async def _change(
    conn: AsyncConnection,
    owned: OwnedWorkspace,
    body: WorkspaceChanges,
    session: Session,
    config: Config,
    now: datetime,
) -> Workspace:
    """The wish comes first: the gate takes the lock of the limits before that of the row."""
    workspace = owned.workspace
    if body.wish is not None:
        workspace = await gate.wish(
            conn, workspace.id, body.wish, actor=session.username, limits=config.limits, now=now
        )
    if body.edits:
        workspace = await gate.edit(conn, workspace.id, body.edits, now=now)
    return workspace


async def _stop_as_admin(
    act: AuditedTransaction, owned: OwnedWorkspace, body: WorkspaceChanges, config: Config
) -> Workspace:
    """Stop another user's workspace. The row may be locked first, since no limit applies to a stop."""
    before = await gate.lock(act.conn, owned.workspace.id)
    if body.wish is None:
        return before
    workspace = await gate.wish(
        act.conn, before.id, body.wish, actor=act.actor.name, limits=config.limits, now=act.now
    )
    if workspace.desired_state is not before.desired_state:
        wish = workspace.desired_state.value
        await act.record(
            Action.WORKSPACE_STOPPED, audit_target(owned), owner=owned.owner_name, desired_state=wish
        )
    return workspace


def _refuse_beyond_stopping(workspace: Workspace, body: WorkspaceChanges) -> None:
    """An admin may stop another's workspace and nothing more: not edit it, not start or restore it."""
    if body.edits:
        raise Forbidden("This workspace belongs to someone else: an admin may stop it, not edit it.")
    if body.wish is DesiredState.RUNNING:
        raise Forbidden("This workspace belongs to someone else: an admin may stop it, not start it.")
    if body.wish is DesiredState.STANDBY and workspace.phase in (Phase.ARCHIVED, Phase.PENDING):
        raise Forbidden("This workspace belongs to someone else: an admin may stop it, not restore it.")


@router.delete("/{workspace_id}", status_code=204)
async def delete_workspace(
    workspace_id: WorkspaceId, session: Caller, actor: CallerActor, services: Shared, now: Now
) -> Response:
    async with audit.transaction(services.engine, actor, now) as act:
        owned = await reach(act.conn, session, workspace_id)
        await gate.delete(act.conn, workspace_id, actor=session.username, now=now)
        await act.record(Action.WORKSPACE_DELETED, audit_target(owned), owner=owned.owner_name)
    return Response(status_code=204)


def _check_standby_ttl(seconds: int | None, config: Config) -> None:
    least = config.settings.minimum_standby_ttl
    if seconds and seconds < least:
        raise ValidationFailed(
            f"standby_ttl_seconds: must be at least {least}, because activity takes that long to be seen; "
            "0 is never, null the default."
        )


def _choose_image(name: str | None, config: Config) -> str:
    chosen = name if name is not None else config.default_image
    names = [image.name for image in config.images]
    if chosen is None or chosen not in names:
        raise ValidationFailed(
            f"image_ref: must be one of {', '.join(names) or 'no image: none is offered'}."
        )
    return chosen
