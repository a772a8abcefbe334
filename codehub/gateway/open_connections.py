"""Registry of open connections by the session and workspace that permit them."""

from typing import NamedTuple, Protocol

from codehub.domain.states import Role


class Revocable(Protocol):
    def revoke(self) -> None:
        """End now, even in the middle of a response."""


class Grant(NamedTuple):
    """Session, workspace and role that permit a connection."""

    session_hash: bytes
    workspace_id: str
    """Empty for the platform's event streams."""
    role: Role | None
    """The role of the session when it opened the connection. None if there was no such session."""


class OpenConnections:
    """Connections that end as soon as their grant is withdrawn."""

    def __init__(self) -> None:
        self._of_session: dict[bytes, dict[Revocable, Role | None]] = {}
        self._of_workspace: dict[str, set[Revocable]] = {}

    def add(self, connection: Revocable, grant: Grant) -> None:
        self._of_session.setdefault(grant.session_hash, {})[connection] = grant.role
        if grant.workspace_id:
            self._of_workspace.setdefault(grant.workspace_id, set()).add(connection)

    def discard(self, connection: Revocable, grant: Grant) -> None:
        if of_session := self._of_session.get(grant.session_hash):
            of_session.pop(connection, None)
            if not of_session:
                del self._of_session[grant.session_hash]
        if of_workspace := self._of_workspace.get(grant.workspace_id):
            of_workspace.discard(connection)
            if not of_workspace:
                del self._of_workspace[grant.workspace_id]

    def sessions(self) -> list[bytes]:
        return list(self._of_session)

    def workspaces(self) -> list[str]:
        return list(self._of_workspace)

    def has_workspace(self, workspace_id: str) -> bool:
        return workspace_id in self._of_workspace

    def revoke_session(self, session_hash: bytes, *, except_role: Role | None = None) -> None:
        """End the session's connections, except those opened with the role `except_role`."""
        for connection, role in list(self._of_session.get(session_hash, {}).items()):
            if role is None or role is not except_role:
                connection.revoke()

    def revoke_workspace(self, workspace_id: str) -> None:
        for connection in list(self._of_workspace.get(workspace_id, ())):
            connection.revoke()
