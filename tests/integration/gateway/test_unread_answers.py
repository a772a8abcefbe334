"""Large responses that their clients do not read keep little memory of the gateway."""

from pathlib import Path

from tests.integration.gateway import flooding
from tests.integration.gateway.client_group import ClientGroup, request
from tests.integration.gateway.gateway_process import gateway_process
from tests.waiting import eventually

COUNT = 200
MOST = 192 << 10
"""Bytes for each client: one read of 128 KiB, and the state of both connections."""


async def test_an_unread_response_keeps_at_most_one_read_of_the_upstream(tmp_path: Path) -> None:
    path = tmp_path / "ide.sock"
    async with flooding.workspace_process(str(path)), gateway_process(upstream=f"unix:{path}") as gateway:
        group = ClientGroup(gateway)

        async def leave_unread(count: int) -> int:
            """Request endless responses on more connections, and return the gateway's memory."""
            for client in (await group.connect(count, request(gateway, "/large-chunks")))[-count:]:
                client.transport.pause_reading()  # type: ignore[attr-defined]

            async def are_paused() -> bool:
                return await gateway.paused_clients() == len(group.clients)

            await eventually(are_paused, "the buffers of the clients to be full")
            return gateway.resident()

        before = await leave_unread(20)
        grown = await leave_unread(COUNT) - before
        print(f"{grown / COUNT / 1024:.0f} KiB a client")
        assert grown < COUNT * MOST
        group.abort()
