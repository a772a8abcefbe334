"""uvicorn's HTTP protocol, with what an event stream needs to know about its connection."""

import asyncio
from typing import Final

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_EXTENSION: Final = "codehub.transport"


class ApiProtocol(HttpToolsProtocol):
    """Puts the transport into the scope.

    ASGI has no way to give up a connection whose client takes no bytes: uvicorn closes it only after
    the client has read what is buffered.
    """

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {_EXTENSION: {"transport": self.transport}}


def transport_of(scope: Scope) -> asyncio.Transport | None:
    """Return the connection of a request, or None where the application is called without a server."""
    found: asyncio.Transport | None = scope.get("extensions", {}).get(_EXTENSION, {}).get("transport")
    return found
