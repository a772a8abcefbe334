"""Ports of the process runtime's workspaces, through the port broker of each (ADR 0013)."""

from __future__ import annotations

import asyncio
import socket

from codehub.domain.ports import PORT_BROKER_SOCKET
from codehub.host.full_sockets import FullSockets
from codehub.host.port_sockets import connect_through
from codehub.runtimes.port_runtime import CONNECT_SECONDS, PortClosed, PortsUnavailable
from codehub.runtimes.process.commands import ProcessCommands


class ProcessPorts:
    """`PortRuntime` of the process runtime."""

    def __init__(self, commands: ProcessCommands) -> None:
        self._commands = commands
        self._full_sockets = FullSockets()

    async def connect(self, workspace_id: str, port: int) -> socket.socket:
        broker = self._commands.workspace_directory(workspace_id) / PORT_BROKER_SOCKET
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await connect_through(str(broker), port, self._full_sockets)
        except FileNotFoundError as error:
            raise PortsUnavailable(
                "no port of this workspace can be reached: it has stopped, it was started without its own "
                "network, or an older version of CodeHub started it; restart it to reach its ports"
            ) from error
        except OSError as error:  # TimeoutError among them
            raise PortClosed(f"nothing answers on port {port} of this workspace") from error
