"""Runs the API on a Unix socket that only the gateway reaches."""

import socket
from pathlib import Path
from typing import Final

import uvicorn
from fastapi import FastAPI

from codehub.api.app import create_app
from codehub.settings import Settings

GOODBYE_SECONDS: Final = 5
BACKLOG: Final = 2048


class _Server(uvicorn.Server):
    """Ends the event streams first when it stops: they would never end by themselves."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        services = getattr(self._app.state, "services", None)
        if services is not None:
            services.subscriptions.end_all()
        await super().shutdown(sockets)


def listen(path: Path) -> socket.socket:
    """A listening Unix socket in place of whatever an earlier process left there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(str(path))
        path.chmod(0o600)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def make_server(settings: Settings) -> uvicorn.Server:
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=GOODBYE_SECONDS,
        timeout_keep_alive=75,
    )
    return _Server(config, app)


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT."""
    listening = listen(settings.api_socket)
    try:
        make_server(settings).run(sockets=[listening])
    finally:
        listening.close()
