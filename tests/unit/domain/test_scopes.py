"""Scopes: what each permits, alone and together, and what no token permits."""

import pytest

from codehub.domain.scopes import (
    EVERY_USERS,
    CredentialKind,
    Requirement,
    Scope,
    effective_scopes,
    scopes_of_role,
)
from codehub.domain.states import Role

READ = Requirement(frozenset((Scope.READ,)), or_admin=True)
MANAGE = Requirement(frozenset((Scope.MANAGE,)))
MANAGE_OR_ADMIN = Requirement(frozenset((Scope.MANAGE,)), or_admin=True)
USE = Requirement(frozenset((Scope.USE,)))
BOTH = Requirement(frozenset((Scope.MANAGE, Scope.USE)))
ADMIN = Requirement(frozenset((Scope.ADMIN,)))
ACCOUNT = Requirement(session_only=True)
ANY = Requirement()


@pytest.mark.parametrize(
    ("requirement", "enough"),
    [
        (READ, {Scope.READ, Scope.ADMIN}),
        (MANAGE, {Scope.MANAGE}),
        (MANAGE_OR_ADMIN, {Scope.MANAGE, Scope.ADMIN}),
        (USE, {Scope.USE}),
        (BOTH, set()),
        (ADMIN, {Scope.ADMIN}),
        (ACCOUNT, set()),
        (ANY, set(Scope)),
    ],
)
def test_each_scope_alone_permits_its_own_calls(requirement: Requirement, enough: set[Scope]) -> None:
    permitted = {
        scope for scope in Scope if requirement.refusal(CredentialKind.TOKEN, frozenset((scope,))) is None
    }
    assert permitted == enough


def test_a_call_that_needs_two_scopes_needs_both() -> None:
    assert BOTH.refusal(CredentialKind.TOKEN, frozenset((Scope.MANAGE, Scope.USE))) is None


def test_no_scopes_reach_the_account() -> None:
    assert ACCOUNT.refusal(CredentialKind.TOKEN, frozenset(Scope)) is not None
    assert ACCOUNT.refusal(CredentialKind.SESSION, EVERY_USERS) is None


@pytest.mark.parametrize("requirement", [READ, MANAGE, MANAGE_OR_ADMIN, USE, BOTH, ACCOUNT, ANY])
def test_a_session_permits_what_its_user_may(requirement: Requirement) -> None:
    assert requirement.refusal(CredentialKind.SESSION, scopes_of_role(Role.USER)) is None


def test_only_an_admins_session_permits_what_admins_may() -> None:
    assert ADMIN.refusal(CredentialKind.SESSION, scopes_of_role(Role.USER)) == "Only an admin may do this."
    assert ADMIN.refusal(CredentialKind.SESSION, scopes_of_role(Role.ADMIN)) is None


def test_a_refusal_names_the_scopes_that_are_missing() -> None:
    refusal = BOTH.refusal(CredentialKind.TOKEN, frozenset((Scope.READ,)))
    assert refusal is not None and '"manage" and "use"' in refusal


def test_a_token_loses_admin_when_its_owner_is_demoted() -> None:
    granted = frozenset((Scope.READ, Scope.ADMIN))
    assert effective_scopes(granted, Role.ADMIN) == granted
    assert effective_scopes(granted, Role.USER) == {Scope.READ}


def test_a_token_has_no_more_scopes_than_it_was_given() -> None:
    assert effective_scopes((Scope.USE,), Role.ADMIN) == {Scope.USE}
