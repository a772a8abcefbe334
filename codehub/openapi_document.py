"""The OpenAPI document of all calls: those that the API serves, and those of the access part.

Neither part imports it: `codehub.cli` hands it to the API.
"""

from typing import Any, Final

from fastapi import FastAPI, Response
from fastapi.routing import APIRoute, APIWebSocketRoute, iter_route_contexts

from codehub.access.app import ERROR_RESPONSES, make_router
from codehub.asgi.callers import requirements
from codehub.domain.cookie_names import SESSION_COOKIE

Document = dict[str, Any]

SCHEMES: Final = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API token with the scopes that the call names. With one, no cookie is read.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": SESSION_COOKIE,
        "description": "The cookie of a sign-in, which POST /api/v1/login sets. On https its name begins "
        "with `__Host-`.",
    },
}
WEBSOCKET: Final = "x-websocket"
"""Marks the operations that are opened as WebSockets, which OpenAPI has no word for."""


def describe(api: FastAPI) -> Document:
    """Return the API's document with the calls of the access part."""
    document = FastAPI.openapi(api)
    access = FastAPI(title=api.title)
    access.include_router(make_router())
    _add_websockets(access)
    document = merged(document, access.openapi())
    document["components"]["securitySchemes"] = SCHEMES
    for app in (api, access):
        _describe_callers(document, app)
    return document


def merged(document: Document, other: Document) -> Document:
    """Add the paths and schemas of another document. Schemas of one name must be the same."""
    schemas = document["components"]["schemas"]
    for name, schema in other["components"]["schemas"].items():
        if schemas.setdefault(name, schema) != schema:
            raise ValueError(f"two schemas of the OpenAPI document are called {name}: rename one")
    document["paths"] |= other["paths"]
    return document


def _add_websockets(app: FastAPI) -> None:
    """Describe each WebSocket as the GET request that opens it."""
    for context in list(iter_route_contexts(app.routes)):
        route = context.original_route
        if isinstance(route, APIWebSocketRoute):
            app.add_api_route(
                context.path or route.path,
                route.endpoint,
                methods=["GET"],
                status_code=101,
                response_class=Response,
                responses=ERROR_RESPONSES,
                response_description="The WebSocket is open.",
                tags=["websockets"],
                openapi_extra={WEBSOCKET: True},
            )


def _describe_callers(document: Document, app: FastAPI) -> None:
    """Add to each operation which credentials permit it."""
    for context in iter_route_contexts(app.routes):
        route = context.original_route
        if not isinstance(route, APIRoute) or not route.include_in_schema:
            continue
        for required in set(requirements(route.dependant)):
            for method in context.methods or ():
                operation = document["paths"][context.path][method.lower()]
                by_token = [] if required.session_only else [{"token": sorted(required.scopes)}]
                operation["security"] = [*by_token, {"session": []}]
                described = operation.get("description", "")
                operation["description"] = f"{described}\n\n{required.description}".lstrip()
