"""`/admin/audit`: the audit log, newest entries first. For admins."""

from datetime import datetime
from ipaddress import IPv4Address, IPv6Address
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import AwareDatetime, BaseModel, BeforeValidator, Field
from sqlalchemy import Row

from codehub.api.services import Shared
from codehub.api.workspaces import Limit
from codehub.asgi.callers import AdminCaller
from codehub.asgi.fields import ShortText
from codehub.database import audit
from codehub.domain.audit import Action, ActorKind, Outcome
from codehub.domain.ids import is_ulid
from codehub.domain.problems import ValidationFailed

router = APIRouter(prefix="/admin", tags=["admin"])

Before = Annotated[
    Annotated[int, Field(ge=1, lt=1 << 63)] | None, Query(description="The `next` of the previous page.")
]


def _check_is_text_of_time(value: object) -> object:
    """Reject numbers, which the validator of times takes as seconds since 1970."""
    if not isinstance(value, str) or "T" not in value.upper():
        raise ValueError("must be a time such as 2026-01-31T12:00:00Z")
    return value


_Time = Annotated[AwareDatetime, BeforeValidator(_check_is_text_of_time)]
Since = Annotated[_Time | None, Query(alias="from", description="The earliest time.")]
Until = Annotated[_Time | None, Query(alias="to", description="Entries are earlier than this time.")]
Actor = Annotated[ShortText | None, Query(description="The name of the actor, or the id of a user.")]
Target = Annotated[
    ShortText | None, Query(description="The name of the target, or the id of a user or workspace.")
]


class AuditActor(BaseModel):
    kind: ActorKind
    id: str | None
    name: str


class AuditTarget(BaseModel):
    kind: str
    id: str | None
    name: str


class AuditEntryView(BaseModel):
    """One entry. `action` is a name that the filter accepts, or one that a newer version has added."""

    id: int
    at: datetime
    actor: AuditActor
    address: IPv4Address | IPv6Address | None
    action: str
    target: AuditTarget | None
    outcome: Outcome
    details: dict[str, str | int | list[str]]


class AuditPage(BaseModel):
    """`next` is the `before` of the next page, or null on the last one."""

    items: list[AuditEntryView]
    next: int | None


@router.get("/audit")
async def read_audit_log(
    _admin: AdminCaller,
    services: Shared,
    limit: Limit = 50,
    before: Before = None,
    actor: Actor = None,
    action: Action | None = None,
    target: Target = None,
    since: Since = None,
    until: Until = None,
) -> AuditPage:
    """Return a page of entries. New entries do not shift the pages that follow."""
    if since is not None and until is not None and since >= until:
        raise ValidationFailed("from: must be earlier than `to`.")
    actor_id, actor_name = _id_or_name(actor)
    target_id, target_name = _id_or_name(target)
    filters = audit.AuditFilters(
        before, actor_id, actor_name, action, target_id, target_name, since=since, until=until
    )
    async with services.engine.connect() as conn:
        rows = await audit.read_entries(conn, filters, limit + 1)
    items = [_to_entry_view(row) for row in rows[:limit]]
    return AuditPage(items=items, next=items[-1].id if len(rows) > limit else None)


def _id_or_name(text: str | None) -> tuple[str | None, str | None]:
    """Return an id or a name, by its form. A query on both columns would not use their indexes."""
    if text is not None and is_ulid(text):
        return text, None
    return None, text


def _to_entry_view(row: Row[Any]) -> AuditEntryView:
    target = None
    if row.target_kind is not None:
        target = AuditTarget(kind=row.target_kind, id=row.target_id, name=row.target_name)
    return AuditEntryView(
        id=row.id,
        at=row.at,
        actor=AuditActor(kind=row.actor_kind, id=row.actor_id, name=row.actor_name),
        address=row.address,
        action=row.action,
        target=target,
        outcome=row.outcome,
        details=row.details,
    )
