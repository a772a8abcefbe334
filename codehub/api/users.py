"""`/users`: the accounts. For admins."""

from datetime import datetime
from typing import Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel

from codehub.api.permissions import UserId
from codehub.api.services import Now, Shared
from codehub.api.views import AccountView, ListedAccountView
from codehub.api.workspaces import Limit, Offset
from codehub.asgi.callers import AdminCaller, CallerActor
from codehub.asgi.fields import RequestBody, Secret, ShortText
from codehub.database import accounts
from codehub.database.archive_usage import archive_bytes
from codehub.database.credentials import Credential
from codehub.domain.new_token import check_password_is_recent
from codehub.domain.problems import Forbidden, ValidationFailed
from codehub.domain.states import Role

router = APIRouter(prefix="/users", tags=["users"])

RoleName = Literal["user", "admin"]


class NewUser(RequestBody):
    """A new account. A service account has no password and cannot be an admin."""

    username: ShortText
    password: Secret | None = None
    role: RoleName = "user"
    service: bool = False


class UserChanges(RequestBody):
    """Changes of an account. A missing field stays unchanged. `your_password` is the caller's own."""

    password: Secret = ""
    role: RoleName = "user"
    your_password: Secret = ""


class UserPage(BaseModel):
    items: list[ListedAccountView]
    total: int


@router.get("")
async def list_users(
    _admin: AdminCaller, services: Shared, limit: Limit = 200, offset: Offset = 0
) -> UserPage:
    """Return a page of all accounts."""
    async with services.engine.connect() as conn:
        found, total = await accounts.list_accounts(conn, limit, offset)
        archive_sizes = await archive_bytes(conn, [account.id for account in found])
    items = [ListedAccountView.of_listed(account, archive_sizes.get(account.id, 0)) for account in found]
    return UserPage(items=items, total=total)


@router.post("", status_code=201)
async def create_user(
    body: NewUser, admin: AdminCaller, actor: CallerActor, services: Shared, now: Now
) -> AccountView:
    """Create an account. For a person's, PASSWORD_REQUIRED asks for POST /session/confirm first."""
    if body.service:
        if body.password is not None or body.role == "admin":
            raise ValidationFailed("service: a service account has no password and cannot be an admin.")
        account = await accounts.create_service_account(services.engine, body.username, actor=actor, now=now)
        return AccountView.of_account(account)
    if body.password is None:
        raise ValidationFailed("password: must be given, except for a service account.")
    _check_may_give_access(admin, now)
    account = await accounts.create_account(
        services.engine, body.username, body.password, Role(body.role), actor=actor, now=now
    )
    return AccountView.of_account(account)


@router.patch("/{user_id}")
async def change_user(
    user_id: UserId, body: UserChanges, admin: AdminCaller, actor: CallerActor, services: Shared, now: Now
) -> AccountView:
    """Setting a password requires the caller's own. A wrong one counts as a failed sign-in.

    For the role admin, PASSWORD_REQUIRED asks for POST /session/confirm first.
    """
    set_fields = body.model_fields_set
    if "password" in set_fields and admin.is_token:
        raise Forbidden("A token does not permit setting a password. Sign in instead.")
    if "role" in set_fields and body.role == "admin":
        _check_may_give_access(admin, now)
    changes = accounts.AccountChanges(
        password=body.password if "password" in set_fields else None,
        role=Role(body.role) if "role" in set_fields else None,
    )
    own_password = body.your_password if "your_password" in set_fields else None
    account = await accounts.change_account_as_admin(
        services.engine, admin, own_password, user_id, changes, actor=actor, now=now
    )
    return AccountView.of_account(account)


def _check_may_give_access(admin: Credential, now: datetime) -> None:
    """Refuse tokens and unattended sessions.

    With a password of an admin they would set any user's, and sign in as that user.
    """
    if admin.is_token:
        raise Forbidden(
            "A token does not permit creating an account with a password, or making a user an admin."
            " Sign in instead. A token may create service accounts."
        )
    check_password_is_recent(admin.password_at, now)


@router.delete("/{user_id}", status_code=204)
async def delete_user(
    user_id: UserId, _admin: AdminCaller, actor: CallerActor, services: Shared, now: Now
) -> Response:
    """Delete an account: its sessions and tokens end, and its workspaces go to the trash."""
    await accounts.delete_account(services.engine, user_id, actor=actor, now=now)
    return Response(status_code=204)
