"""Scopes of credentials: what each permits, and which calls need which."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from codehub.domain.states import Role


class Scope(StrEnum):
    """Permission of a token. The names are part of the API and never change."""

    READ = "read"
    MANAGE = "manage"
    USE = "use"
    ADMIN = "admin"


class CredentialKind(StrEnum):
    """How a caller proves who they are: with the cookie of a session, or with a token."""

    SESSION = "session"
    TOKEN = "token"  # noqa: S105 - a name


EVERY_USERS: Final = frozenset((Scope.READ, Scope.MANAGE, Scope.USE))
"""The scopes that any user may have."""


def scopes_of_role(role: Role) -> frozenset[Scope]:
    """Return what a user of this role may do: the scopes of their sessions."""
    return EVERY_USERS | {Scope.ADMIN} if role is Role.ADMIN else EVERY_USERS


def effective_scopes(granted: Collection[Scope], role: Role) -> frozenset[Scope]:
    """Return the scopes of a token that its owner may have now: a demoted admin's lose `admin`."""
    return scopes_of_role(role) & frozenset(granted)


@dataclass(frozen=True)
class Requirement:
    """What a call requires of its caller: all of these scopes.

    With `or_admin`, the scope `admin` is enough, because admins may do this with any workspace. With
    `session_only`, no token is enough: the call concerns the account itself.
    """

    scopes: frozenset[Scope] = frozenset()
    or_admin: bool = False
    session_only: bool = False

    @property
    def description(self) -> str:
        """Return a sentence about the credentials that permit the call."""
        if self.session_only:
            return "Needs the session of an admin." if Scope.ADMIN in self.scopes else "Needs a session."
        if not self.scopes:
            return "Needs a session, or a token with any scope."
        names = " and ".join(f"`{scope}`" for scope in Scope if scope in self.scopes)
        either = " or `admin`" if self.or_admin else ""
        who = "the session of an admin" if Scope.ADMIN in self.scopes else "a session"
        return f"Needs {who}, or a token with the scope {names}{either}."

    def refusal(self, kind: CredentialKind, held: frozenset[Scope]) -> str | None:
        """Return why a credential with these scopes does not permit the call, or None if it does."""
        if self.session_only and kind is CredentialKind.TOKEN:
            return "A token does not permit this. Sign in with your password instead."
        missing = self.scopes - held
        if not missing or (self.or_admin and Scope.ADMIN in held):
            return None
        if kind is CredentialKind.SESSION:
            return "Only an admin may do this."
        names = " and ".join(f'"{scope}"' for scope in Scope if scope in missing)
        return f"This token lacks the scope {names}. Use a token that has it."
