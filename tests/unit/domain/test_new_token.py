"""Rules for making tokens: who may make which, for whom, and how long after entering a password."""

from datetime import UTC, datetime, timedelta

import pytest

from codehub.domain.new_token import (
    MOST_TOKENS,
    MOST_WORKSPACES,
    NewToken,
    TokenOwner,
    check_may_make_for,
    check_password_is_recent,
)
from codehub.domain.problems import Forbidden, InvalidState, PasswordRequired, ValidationFailed
from codehub.domain.scopes import Scope
from codehub.domain.states import Role

NOW = datetime(2026, 5, 1, tzinfo=UTC)
ALICE = TokenOwner("alice", Role.USER, is_service=False)
ADMIN = TokenOwner("admin", Role.ADMIN, is_service=False)
ROBOT = TokenOwner("robot", Role.USER, is_service=True)


def token(*scopes: Scope, workspaces: list[str] | None = None) -> NewToken:
    return NewToken.requested("ci", scopes, workspaces, None)


@pytest.mark.parametrize("scope", [Scope.READ, Scope.MANAGE, Scope.USE])
@pytest.mark.parametrize("owner", [ALICE, ADMIN, ROBOT])
def test_anyone_may_have_the_scopes_of_users(scope: Scope, owner: TokenOwner) -> None:
    token(scope).check_owner(owner, 0)


@pytest.mark.parametrize("owner", [ALICE, ROBOT])
def test_only_tokens_of_admins_have_the_scope_admin(owner: TokenOwner) -> None:
    token(Scope.ADMIN).check_owner(ADMIN, 0)
    with pytest.raises(Forbidden):
        token(Scope.READ, Scope.ADMIN).check_owner(owner, 0)


@pytest.mark.parametrize(
    ("scopes", "workspaces"),
    [
        ([], None),
        ([Scope.READ], []),
        ([Scope.ADMIN, Scope.READ], ["one"]),
        ([Scope.READ], [str(number) for number in range(MOST_WORKSPACES + 1)]),
    ],
)
def test_combinations_that_nobody_may_have(scopes: list[Scope], workspaces: list[str] | None) -> None:
    with pytest.raises(ValidationFailed):
        token(*scopes, workspaces=workspaces)


def test_a_workspace_that_is_named_twice_counts_once() -> None:
    assert token(Scope.READ, workspaces=["one", "two", "one"]).workspaces == ("one", "two")


def test_the_number_of_tokens_is_bounded() -> None:
    token(Scope.READ).check_owner(ALICE, MOST_TOKENS - 1)
    with pytest.raises(InvalidState):
        token(Scope.READ).check_owner(ALICE, MOST_TOKENS)


def test_people_make_their_own_tokens_and_admins_those_of_service_accounts() -> None:
    check_may_make_for(ALICE, "alice", maker_is_admin=False)
    check_may_make_for(ROBOT, "admin", maker_is_admin=True)
    for owner, maker, is_admin in ((ALICE, "admin", True), (ROBOT, "alice", False), (ADMIN, "alice", False)):
        with pytest.raises(Forbidden):
            check_may_make_for(owner, maker, maker_is_admin=is_admin)


def test_a_password_counts_for_five_minutes() -> None:
    check_password_is_recent(NOW - timedelta(minutes=5), NOW)
    for entered in (NOW - timedelta(minutes=5, seconds=1), None):
        with pytest.raises(PasswordRequired):
            check_password_is_recent(entered, NOW)
