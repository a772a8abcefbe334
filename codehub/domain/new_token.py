"""Rules for making tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from codehub.domain.problems import Forbidden, InvalidState, PasswordRequired, ValidationFailed
from codehub.domain.scopes import Scope, scopes_of_role
from codehub.domain.states import Role

PASSWORD_VALID_FOR: Final = timedelta(minutes=5)
"""Time after the entry of a password in which its user may make tokens."""
MOST_TOKENS: Final = 100
"""Per user. Each can have its own streams and its own name in the audit log."""
MOST_WORKSPACES: Final = 100
"""Workspaces that one token is bound to."""


@dataclass(frozen=True)
class TokenOwner:
    """The account that a token will act for."""

    user_id: str
    role: Role
    is_service: bool


@dataclass(frozen=True)
class NewToken:
    """A token as requested. `workspaces` is None for a token that is not bound to any."""

    name: str
    scopes: frozenset[Scope]
    workspaces: tuple[str, ...] | None = None
    expires_at: datetime | None = None

    @classmethod
    def requested(
        cls, name: str, scopes: Sequence[Scope], workspaces: Sequence[str] | None, expires_at: datetime | None
    ) -> "NewToken":
        """Return the token, or raise ValidationFailed if nobody may have this combination."""
        if not scopes:
            raise ValidationFailed("scopes: choose at least one of read, manage, use and admin.")
        if workspaces is not None and not workspaces:
            raise ValidationFailed("workspaces: name at least one, or leave it out for all workspaces.")
        if workspaces is not None and len(workspaces) > MOST_WORKSPACES:
            raise ValidationFailed(f"workspaces: a token is bound to at most {MOST_WORKSPACES} workspaces.")
        if workspaces is not None and Scope.ADMIN in scopes:
            raise ValidationFailed('scopes: a token that is bound to workspaces cannot have "admin".')
        bound = None if workspaces is None else tuple(dict.fromkeys(workspaces))
        return cls(name, frozenset(scopes), bound, expires_at)

    def check_owner(self, owner: TokenOwner, existing: int) -> None:
        """Raise a Problem if this owner may not have the token."""
        if not self.scopes <= scopes_of_role(owner.role):
            raise Forbidden('Only tokens of admins can have the scope "admin".')
        if existing >= MOST_TOKENS:
            raise InvalidState(f"There are {MOST_TOKENS} tokens already. Revoke one that is not used.")


def check_may_make_for(owner: TokenOwner, maker_id: str, *, maker_is_admin: bool) -> None:
    """Raise Forbidden unless this is the maker's own account, or a service account and an admin's act."""
    if owner.user_id == maker_id:
        return
    if not maker_is_admin:
        raise Forbidden("Only an admin may do this.")
    if not owner.is_service:
        raise Forbidden("An admin makes tokens for service accounts only. People make their own.")


def check_name(name: str, existing: Sequence[str]) -> None:
    """Raise InvalidState for a name that another token has: timelines and the audit log show names."""
    if name in existing:
        raise InvalidState(f"There is a token with the name {name!r} already. Choose another name.")


def check_password_is_recent(password_at: datetime | None, now: datetime) -> None:
    """Raise PasswordRequired unless the caller's password was entered within PASSWORD_VALID_FOR."""
    if password_at is None or now - password_at > PASSWORD_VALID_FOR:
        raise PasswordRequired
