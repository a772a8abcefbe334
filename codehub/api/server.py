"""The API server: on a Unix socket for the gateway, or on a TCP port with the internal key."""

import socket
from collections.abc import Callable
from functools import partial
from typing import Final

import uvicorn

from codehub.api.app import Describe, create_app
from codehub.asgi import server
from codehub.asgi.server import ServerOptions
from codehub.asgi.uvicorn_protocol import ApiProtocol
from codehub.settings import Settings

__all__ = ["ApiProtocol", "listen", "make_server", "run"]

_LISTEN: Final = "API_LISTEN"
listen = partial(server.listen, _LISTEN)


def make_server(
    settings: Settings,
    internal_listener: socket.socket | None = None,
    *,
    describe: Describe | None = None,
) -> uvicorn.Server:
    app = create_app(settings, describe)

    def end_streams() -> None:
        services = getattr(app.state, "services", None)
        if services is not None:
            services.subscriptions.end_all()

    metrics = app.state.metrics
    slow_reader = metrics.limited.labels("slow_reader").inc
    options = ServerOptions("api", _LISTEN, end_streams, slow_reader, metrics.exposition)
    return server.make_server(app, settings, options, internal_listener)


def run(settings: Settings, *, before_serving: Callable[[], None], describe: Describe) -> None:
    """Serve until SIGTERM or SIGINT. `before_serving` runs once the sockets are bound."""
    address, make = settings.api_listen_address, partial(make_server, describe=describe)
    server.run(settings, "api", _LISTEN, address, make, before_serving=before_serving)
