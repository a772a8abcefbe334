"""Callers of handlers. A handler's parameter declares what its call requires.

Each route takes exactly one of these, or is listed as open to everyone in the test of declared
scopes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends
from fastapi.dependencies.models import Dependant
from starlette.requests import HTTPConnection

from codehub.asgi.call_admission import admitted_credential, client_address, has_ended_session
from codehub.database.credentials import Credential
from codehub.domain.audit import Actor
from codehub.domain.problems import Forbidden, Unauthorized
from codehub.domain.scopes import Requirement, Scope


@dataclass(frozen=True)
class PermittedCaller:
    """Dependency: the caller, or 401 without a credential, or 403 if it does not permit the call."""

    requirement: Requirement

    async def __call__(self, connection: HTTPConnection) -> Credential:
        credential = current_credential(connection)
        refusal = self.requirement.refusal(credential.kind, credential.scopes)
        if refusal is not None:
            raise Forbidden(refusal)
        return credential


def requirements(dependant: Dependant) -> Iterator[Requirement]:
    """Yield what the handler of a route, and its dependencies, require of their caller."""
    if isinstance(dependant.call, PermittedCaller):
        yield dependant.call.requirement
    for dependency in dependant.dependencies:
        yield from requirements(dependency)


def current_credential(connection: HTTPConnection) -> Credential:
    """Return the credential of a call, whatever it permits, or raise Unauthorized."""
    credential = admitted_credential(connection.scope)
    if credential is not None:
        return credential
    if has_ended_session(connection.scope):
        raise Unauthorized("Your session has ended. Sign in again.")
    raise Unauthorized


def _permitted(*scopes: Scope, or_admin: bool = False, session_only: bool = False) -> "PermittedCaller":
    return PermittedCaller(Requirement(frozenset(scopes), or_admin, session_only))


AnyCaller = Annotated[Credential, Depends(_permitted())]
"""A session, or a token with any scope."""
AccountCaller = Annotated[Credential, Depends(_permitted(session_only=True))]
"""A session. For settings of the account, which no token reaches."""
ReadCaller = Annotated[Credential, Depends(_permitted(Scope.READ, or_admin=True))]
ManageCaller = Annotated[Credential, Depends(_permitted(Scope.MANAGE))]
ManageOrAdminCaller = Annotated[Credential, Depends(_permitted(Scope.MANAGE, or_admin=True))]
"""For what admins may do with any workspace: stop, recover, delete and undelete."""
UseCaller = Annotated[Credential, Depends(_permitted(Scope.USE))]
AdminAccountCaller = Annotated[Credential, Depends(_permitted(Scope.ADMIN, session_only=True))]
"""An admin's session. For passwords and tokens of accounts."""
AdminCaller = Annotated[Credential, Depends(_permitted(Scope.ADMIN))]


async def _actor(connection: HTTPConnection) -> Actor:
    return current_credential(connection).actor(client_address(connection))


CallerActor = Annotated[Actor, Depends(_actor)]
"""The caller, as recorded in the audit log."""
