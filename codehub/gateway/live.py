"""Which connections are open by whose leave, so that they end the moment it is withdrawn."""

from typing import Protocol, TypeVar

Key = TypeVar("Key", bytes, str)


class Revocable(Protocol):
    def revoke(self) -> None:
        """End now, whatever is under way."""


Leave = tuple[bytes, str]
"""The session hash, and the workspace's id or nothing for the platform's own streams."""


class LiveConnections:
    def __init__(self) -> None:
        self._of_session: dict[bytes, set[Revocable]] = {}
        self._of_workspace: dict[str, set[Revocable]] = {}

    def add(self, connection: Revocable, leave: Leave) -> None:
        session_hash, workspace_id = leave
        self._of_session.setdefault(session_hash, set()).add(connection)
        if workspace_id:
            self._of_workspace.setdefault(workspace_id, set()).add(connection)

    def discard(self, connection: Revocable, leave: Leave) -> None:
        session_hash, workspace_id = leave
        _remove(self._of_session, session_hash, connection)
        if workspace_id:
            _remove(self._of_workspace, workspace_id, connection)

    def sessions(self) -> list[bytes]:
        return list(self._of_session)

    def workspaces(self) -> list[str]:
        return list(self._of_workspace)

    def has_workspace(self, workspace_id: str) -> bool:
        return workspace_id in self._of_workspace

    def revoke_session(self, session_hash: bytes) -> int:
        return _revoke(self._of_session.get(session_hash))

    def revoke_workspace(self, workspace_id: str) -> int:
        return _revoke(self._of_workspace.get(workspace_id))


def _remove(table: dict[Key, set[Revocable]], key: Key, connection: Revocable) -> None:
    connections = table.get(key)
    if connections is None:
        return
    connections.discard(connection)
    if not connections:
        del table[key]


def _revoke(connections: set[Revocable] | None) -> int:
    found = list(connections or ())
    for connection in found:
        connection.revoke()
    return len(found)
