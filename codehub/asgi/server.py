"""uvicorn server of a part: on a Unix socket for the gateway, or on a TCP port with the internal key."""

import os
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, cast

import uvicorn
from fastapi import FastAPI

from codehub import health_endpoints, internal_http
from codehub.asgi.uvicorn_protocol import ApiProtocol
from codehub.asgi.websocket_protocol import PING_SECONDS, PONG_SECONDS, WebSocketProtocol
from codehub.settings import Settings

SHUTDOWN_SECONDS: Final = 5
BACKLOG: Final = 2048
MAX_WEBSOCKET_MESSAGE: Final = 64 << 10
"""Bytes. A queue of messages holds at most its length times this."""


@dataclass(frozen=True)
class ServerOptions:
    """What differs between the parts that serve HTTP."""

    part: str
    listen_setting: str
    """The setting that holds the address."""
    end_streams: Callable[[], None]
    """Ends the streams at shutdown: they have no end otherwise."""
    on_stall: Callable[[], object]
    """Called when a client that does not read is disconnected."""
    exposition: health_endpoints.Exposition
    has_websockets: bool = False


ServerFactory = Callable[[Settings, socket.socket], uvicorn.Server]


def make_server(
    app: FastAPI, settings: Settings, options: ServerOptions, internal_listener: socket.socket | None = None
) -> uvicorn.Server:
    protocol = partial(ApiProtocol, on_stall=options.on_stall)
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=cast(type[ApiProtocol], protocol),
        ws=WebSocketProtocol if options.has_websockets else "none",
        ws_max_size=MAX_WEBSOCKET_MESSAGE,
        ws_per_message_deflate=False,
        ws_ping_interval=PING_SECONDS,
        ws_ping_timeout=PONG_SECONDS,
        lifespan="on",
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        timeout_keep_alive=75,
    )
    internal_listener = internal_listener or internal_http.listen(settings.internal_addresses(options.part))
    return _UvicornServer(config, settings, options, internal_listener)


def run(
    settings: Settings,
    part: str,
    listen_setting: str,
    address: str,
    make: ServerFactory,
    *,
    before_serving: Callable[[], None],
) -> None:
    """Serve until SIGTERM or SIGINT. `before_serving` runs once the sockets are bound."""
    with listen(listen_setting, address, settings.gateway_group) as listening:
        internal_listener = internal_http.listen(settings.internal_addresses(part))
        try:
            before_serving()
            make(settings, internal_listener).run(sockets=[listening])
        finally:
            internal_http.close_and_remove(internal_listener)


class _UvicornServer(uvicorn.Server):
    """uvicorn server that ends the streams at shutdown.

    Health and metrics are served on the internal listener.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        settings: Settings,
        options: ServerOptions,
        internal_listener: socket.socket,
    ) -> None:
        super().__init__(config)
        self._settings = settings
        self._options = options
        self._internal = AsyncExitStack()
        self._internal_listener = internal_listener

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        settings = self._settings
        handlers = health_endpoints.handlers(
            settings.database_url, settings.redis_url, self._options.exposition
        )
        self._internal.callback(internal_http.close_and_remove, self._internal_listener)
        await self._internal.enter_async_context(internal_http.serve_paths(self._internal_listener, handlers))
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._options.end_streams()
        await super().shutdown(sockets)
        await self._internal.aclose()


def listen(setting: str, address: str, group: int | None = None) -> socket.socket:
    """Listen on `unix:/path`, for this user and the members of `group`, or on `tcp:host:port`."""
    kind, _, where = address.partition(":")
    try:
        return (
            _listen_unix(Path(where), group) if kind == "unix" else internal_http.listen_tcp(where, BACKLOG)
        )
    except OSError as error:
        raise OSError(f"{setting} {address} cannot be used ({error.strerror}): choose another") from error


def _listen_unix(path: Path, group: int | None) -> socket.socket:
    """Listen on a Unix socket. Replace one that an earlier process left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(str(path))
        if group is not None:
            os.chown(path, -1, group)
        path.chmod(0o600 if group is None else 0o660)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
