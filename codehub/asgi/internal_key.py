"""Authentication of the gateway, for a part that listens on TCP."""

import secrets

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from codehub.asgi.errors import envelope
from codehub.domain.internal_key_header import INTERNAL_KEY

_OPEN_PATH = "/healthz"


class InternalKeyMiddleware:
    """Middleware that rejects requests without the shared key, except /healthz.

    Only the gateway may set X-Forwarded-For.
    """

    def __init__(self, app: ASGIApp, *, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_call = scope["type"] in ("http", "websocket")
        if is_call and scope["path"] != _OPEN_PATH and not self._has_key(scope):
            response = envelope(
                403,
                "FORBIDDEN",
                "Only CodeHub's gateway may use this address: INTERNAL_KEY is missing or differs.",
            )
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        keys = Headers(scope=scope).getlist(INTERNAL_KEY)
        return len(keys) == 1 and secrets.compare_digest(keys[0].encode("latin-1"), self._key)
