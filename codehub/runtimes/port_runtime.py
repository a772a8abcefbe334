"""The protocol for connections to ports inside running workspaces."""

from __future__ import annotations

import socket
from typing import Final, Protocol

CONNECT_SECONDS: Final = 10.0


class PortsUnavailable(Exception):  # noqa: N818 - a fact, not a fault
    """No port of the workspace can be reached. The message is for the person who asked."""


class PortClosed(Exception):  # noqa: N818 - a fact, not a fault
    """Nothing answers on the port."""


class PortRuntime(Protocol):
    """Interface to the TCP ports inside a runtime's workspaces."""

    async def connect(self, workspace_id: str, port: int) -> socket.socket:
        """Return a connection that does not block. Raise PortsUnavailable or PortClosed."""
