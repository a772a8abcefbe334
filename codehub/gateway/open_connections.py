"""Which connections are open by whose leave, so that they end the moment it is withdrawn."""

from typing import NamedTuple, Protocol

from codehub.domain.states import Role


class Revocable(Protocol):
    def revoke(self) -> None:
        """End now, whatever is under way."""


class Grant(NamedTuple):
    session_hash: bytes
    workspace_id: str
    """Empty for the platform's own streams."""
    role: Role | None
    """In which the session was when it opened this; None: there was no such session."""


class OpenConnections:
    def __init__(self) -> None:
        self._of_session: dict[bytes, dict[Revocable, Role | None]] = {}
        self._of_workspace: dict[str, set[Revocable]] = {}

    def add(self, connection: Revocable, leave: Grant) -> None:
        self._of_session.setdefault(leave.session_hash, {})[connection] = leave.role
        if leave.workspace_id:
            self._of_workspace.setdefault(leave.workspace_id, set()).add(connection)

    def discard(self, connection: Revocable, leave: Grant) -> None:
        if of_session := self._of_session.get(leave.session_hash):
            of_session.pop(connection, None)
            if not of_session:
                del self._of_session[leave.session_hash]
        if of_workspace := self._of_workspace.get(leave.workspace_id):
            of_workspace.discard(connection)
            if not of_workspace:
                del self._of_workspace[leave.workspace_id]

    def sessions(self) -> list[bytes]:
        return list(self._of_session)

    def workspaces(self) -> list[str]:
        return list(self._of_workspace)

    def has_workspace(self, workspace_id: str) -> bool:
        return workspace_id in self._of_workspace

    def revoke_session(self, session_hash: bytes, *, but_in: Role | None = None) -> None:
        """End what is open by this session; what it opened in the role that it still has may stay."""
        for connection, role in list(self._of_session.get(session_hash, {}).items()):
            if role is None or role is not but_in:
                connection.revoke()

    def revoke_workspace(self, workspace_id: str) -> None:
        for connection in list(self._of_workspace.get(workspace_id, ())):
            connection.revoke()
