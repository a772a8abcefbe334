"""The internal key: calls and WebSockets without it are refused."""

import pytest
from starlette.types import Message, Receive, Scope, Send

from codehub.asgi.internal_key import InternalKeyMiddleware
from codehub.domain.internal_key_header import INTERNAL_KEY

KEY = "k" * 32


async def call(kind: str, path: str, *keys: str) -> str:
    """Return who answered a call: the application, or the middleware with its status."""
    answered: list[str] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        answered.append("application")

    async def receive() -> Message:
        return {"type": f"{kind}.connect"}

    async def send(message: Message) -> None:
        if "status" in message:
            answered.append(str(message["status"]))

    headers = [(INTERNAL_KEY.lower().encode(), key.encode()) for key in keys]
    scope = {
        "type": kind, "path": path, "headers": headers, "extensions": {"websocket.http.response": {}},
    }  # fmt: skip
    await InternalKeyMiddleware(application, key=KEY)(scope, receive, send)
    return answered[0]


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_only_calls_with_the_key_reach_the_application(kind: str) -> None:
    assert await call(kind, "/api/v1/x", KEY) == "application"
    for keys in ((), ("wrong",), (KEY, KEY)):
        assert await call(kind, "/api/v1/x", *keys) == "403"
    assert await call(kind, "/healthz") == "application"
