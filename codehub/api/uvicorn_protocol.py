"""uvicorn's HTTP protocol, which gives event streams access to their connection."""

import asyncio
from typing import Final

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_EXTENSION: Final = "codehub.transport"


class ApiProtocol(HttpToolsProtocol):
    """HTTP protocol that puts the transport into the scope.

    ASGI cannot drop a connection whose client does not read: uvicorn closes it only after the client has
    read what is buffered.
    """

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {_EXTENSION: {"transport": self.transport}}


def transport_of(scope: Scope) -> asyncio.Transport | None:
    """Return the connection of a request, or None where the application is called without a server."""
    transport: asyncio.Transport | None = scope.get("extensions", {}).get(_EXTENSION, {}).get("transport")
    return transport
