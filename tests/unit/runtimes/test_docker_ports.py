"""Connections to the ports of containers, whose addresses the engine gives to others later."""

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest

from codehub.runtimes.docker import ports
from codehub.runtimes.docker.commands import DockerCommands
from codehub.runtimes.docker.ports import DockerPorts
from codehub.runtimes.port_runtime import PortsUnavailable


class Containers:
    """The containers of a workspace, as the engine shows them at one look after the other."""

    def __init__(self, *looks: str | None) -> None:
        self._looks: Iterator[str | None] = iter(looks)

    def inspect_running(self, _workspace_id: str) -> dict[str, Any] | None:
        if (name := next(self._looks)) is None:
            return None
        network = {"Networks": {"n": {"IPAddress": "127.0.0.1"}}}
        return {"Id": name, "HostConfig": {"NetworkMode": "n"}, "NetworkSettings": network}


@pytest.mark.parametrize(("second", "is_connected"), [("c1", True), ("c2", False), (None, False)])
async def test_a_connection_is_that_of_a_container_which_still_runs(
    second: str | None, is_connected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "network_of", lambda _upstream: "tcp:")
    clients: asyncio.Queue[asyncio.StreamReader] = asyncio.Queue()
    app = await asyncio.start_server(lambda reader, _: clients.put_nowait(reader), "127.0.0.1", 0)
    port = app.sockets[0].getsockname()[1]
    runtime = DockerPorts(cast(DockerCommands, Containers("c1", second)))
    async with app:
        if is_connected:
            (await runtime.connect("w1", port)).close()
        else:
            with pytest.raises(PortsUnavailable):
                await runtime.connect("w1", port)
        client = await clients.get()
        assert await client.read() == b"", "nothing reaches an app behind a reused address"
