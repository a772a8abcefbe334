"""The access server: on a Unix socket for the gateway, or on a TCP port with the internal key."""

import socket
from collections.abc import Callable
from typing import Final

import uvicorn

from codehub.access.app import create_app
from codehub.asgi import server
from codehub.asgi.server import ServerOptions
from codehub.settings import Settings

_LISTEN: Final = "ACCESS_LISTEN"


def make_server(settings: Settings, internal_listener: socket.socket | None = None) -> uvicorn.Server:
    app = create_app(settings)

    def end_streams() -> None:
        services = getattr(app.state, "services", None)
        if services is not None:
            services.readers.end_all()

    metrics = app.state.metrics
    slow_reader = metrics.limited.labels("slow_reader").inc
    options = ServerOptions(
        "access", _LISTEN, end_streams, slow_reader, metrics.exposition, has_websockets=True
    )
    return server.make_server(app, settings, options, internal_listener)


def run(settings: Settings, *, before_serving: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT. `before_serving` runs once the sockets are bound."""
    address = settings.access_listen_address
    server.run(settings, "access", _LISTEN, address, make_server, before_serving=before_serving)
