"""What all WebSockets of the access part share."""

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from fastapi import Response, WebSocket, WebSocketDisconnect

from codehub.access.permissions import find_own
from codehub.access.services import AccessServices
from codehub.asgi.errors import ErrorEnvelope, envelope
from codehub.asgi.uvicorn_protocol import transport_of
from codehub.database.credentials import Credential

CLOSE_SECONDS: Final = 5.0
"""Time in which a client must read what was sent before, to learn why its WebSocket closes."""
NORMAL, GOING_AWAY, PROTOCOL_ERROR, UNSUPPORTED, REVOKED, FAILED, RESTART = (
    1000, 1001, 1002, 1003, 1008, 1011, 1012,
)  # fmt: skip
UPGRADE_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    101: {"description": "Switching Protocols", "content": {}},
    426: {"model": ErrorEnvelope},
}


async def upgrade_required(services: AccessServices, caller: Credential, workspace_id: str) -> Response:
    """Return the answer to a plain request for a WebSocket."""
    async with services.transaction(caller) as conn:
        await find_own(conn, caller, workspace_id)
    message = "This address is a WebSocket. Connect with a client that speaks WebSocket."
    return envelope(426, "UPGRADE_REQUIRED", message, {"Upgrade": "websocket", "Connection": "Upgrade"})


async def run_until_one_ends(
    deciding: Sequence[Coroutine[Any, Any, object]], *, beside: Sequence[Coroutine[Any, Any, object]] = ()
) -> list[Exception]:
    """Run everything until one of `deciding` ends, then cancel the rest. Return the errors."""
    tasks = [asyncio.ensure_future(each) for each in (*deciding, *beside)]
    try:
        await asyncio.wait(tasks[: len(deciding)], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    return [result for result in results if isinstance(result, Exception)]


async def close(websocket: WebSocket, code: int, reason: str = "") -> None:
    """Close a WebSocket. A client that does not read what was sent before loses its connection."""
    try:
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # the client is gone
            async with asyncio.timeout(CLOSE_SECONDS):
                await websocket.close(code, reason)
    except TimeoutError:
        if (transport := transport_of(websocket.scope)) is not None:
            transport.abort()
