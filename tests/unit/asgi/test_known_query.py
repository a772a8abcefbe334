"""Unknown and repeated query parameters, on every route of the API and the access part."""

import json
import re
from typing import Any

import pytest
from fastapi.routing import APIRoute, APIWebSocketRoute, iter_route_contexts

from codehub.access import app as access
from codehub.api import app as api
from codehub.asgi.known_query import known_parameters
from codehub.settings import Settings

SETTINGS = Settings(database_url="postgresql:///none", redis_url="redis://none")
APPS = {part.__name__: part.create_app(SETTINGS) for part in (api, access)}
ROUTES = [
    (part, method, context.path, known_parameters(context.original_route))
    for part, app in APPS.items()
    for context in iter_route_contexts(app.routes)
    if isinstance(context.original_route, APIRoute | APIWebSocketRoute)
    for method in context.methods or ("WEBSOCKET",)
    if context.path != "/healthz"  # probes may add what keeps them from being cached
]


async def refusal(part: str, method: str, path: str, query: str) -> str:
    """Return the message of a 422, or nothing if the query was not the reason."""
    kind, sent = ("websocket" if method == "WEBSOCKET" else "http"), []
    path = re.sub("{[a-z_]+}", "x", path)
    scope = {
        "type": kind, "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "method": method,
        "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
        "headers": [], "client": None, "server": None, "subprotocols": [], "state": {},
        "extensions": {"websocket.http.response": {}},
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"} if kind == "http" else {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await APPS[part](scope, receive, send)
    status = next(message["status"] for message in sent if "status" in message)
    answer = json.loads(b"".join(message.get("body", b"") for message in sent))
    assert status >= 400, answer
    message: str = answer["error"]["message"]
    return message if status == 422 else ""


@pytest.mark.parametrize(("part", "method", "path", "known"), ROUTES)
async def test_an_unknown_parameter_is_rejected_with_the_known_ones(
    part: str, method: str, path: str, known: list[str]
) -> None:
    message = await refusal(part, method, path, "misspelt=1")
    assert '"misspelt" is not a query parameter of this call' in message
    assert all(name in message for name in known)
    assert ("which has none" in message) == (not known)
    for name in known:
        assert f"{name}: is given 2 times" in await refusal(part, method, path, f"{name}=1&{name}=1")
        assert "query parameter" not in await refusal(part, method, path, f"{name}=1")


@pytest.mark.parametrize("name", ["a" * 5000, "%00", "%ED%A0%80", "%FF", "path%00"])
async def test_an_unknown_name_of_any_text_is_rejected_in_a_short_sentence(name: str) -> None:
    message = await refusal(api.__name__, "GET", "/api/v1/workspaces", f"{name}=1")
    assert "is not a query parameter" in message and len(message) < 250
