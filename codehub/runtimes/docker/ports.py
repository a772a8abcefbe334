"""Ports of the Docker runtime's workspaces, at the address of each container."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass

from codehub.domain.ports import network_of
from codehub.runtimes.docker.commands import DockerCommands
from codehub.runtimes.port_runtime import CONNECT_SECONDS, PortClosed, PortsUnavailable


@dataclass(frozen=True)
class DockerPorts:
    """`PortRuntime` of the Docker runtime."""

    commands: DockerCommands

    async def connect(self, workspace_id: str, port: int) -> socket.socket:
        address = await asyncio.to_thread(self._address, workspace_id)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await asyncio.get_running_loop().sock_connect(connection, (address, port))
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError):  # TimeoutError among them
                message = (
                    f"nothing answers on port {port} of this workspace; an app must listen on 0.0.0.0, "
                    "because only the container itself reaches its 127.0.0.1"
                )
                raise PortClosed(message) from error
            raise
        return connection

    def _address(self, workspace_id: str) -> str:
        """Return the address of a running container, which is none of this machine's own."""
        try:
            found = self.commands.inspect_running(workspace_id)
        except OSError as error:
            raise PortsUnavailable(str(error)) from error
        if found is None:
            raise PortsUnavailable("no port of this workspace can be reached: it has stopped")
        network = found["HostConfig"]["NetworkMode"]
        address = str(found["NetworkSettings"]["Networks"].get(network, {}).get("IPAddress") or "")
        if network_of(f"tcp:{address}:0") is None:
            raise PortsUnavailable("no port of this workspace can be reached: it has no address")
        return address
