"""The reference of the API, which is made from its OpenAPI document: every route, and what it does."""

import re
from typing import Any

import pytest
from fastapi.routing import APIRoute, APIWebSocketRoute, iter_route_contexts

from codehub import openapi_document
from codehub.access import app as access
from codehub.api import app as api
from codehub.asgi.callers import requirements
from codehub.asgi.known_query import known_parameters
from codehub.settings import Settings

SETTINGS = Settings(database_url="postgresql:///none", redis_url="redis://none")
API = api.create_app(SETTINGS, openapi_document.describe)
DOCUMENT = API.openapi()
OPEN = {"POST /api/v1/login", "GET /healthz"}
ROUTES = {
    f"{method} {context.path}": context.original_route
    for app in (API, access.create_app(SETTINGS))
    for context in iter_route_contexts(app.routes)
    if isinstance(context.original_route, APIRoute | APIWebSocketRoute)
    for method in context.methods or ("GET",)
}
OPERATIONS: dict[str, dict[str, Any]] = {
    f"{method.upper()} {path}": operation
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
}


def test_every_route_is_in_the_document_and_nothing_else() -> None:
    assert set(OPERATIONS) == set(ROUTES)
    assert len(ROUTES) > 50


@pytest.mark.parametrize("call", sorted(ROUTES))
def test_a_call_is_described(call: str) -> None:
    operation, route = OPERATIONS[call], ROUTES[call]
    assert operation["tags"] and operation["summary"]
    assert route.endpoint.__doc__, "the docstring of the handler is the description"
    assert route.endpoint.__doc__.strip().endswith(".")
    parameters = {part["name"] for part in operation.get("parameters", ()) if part["in"] == "query"}
    assert parameters == set(known_parameters(route))
    assert set(re.findall(r"{(\w+)}", call)) == {
        part["name"] for part in operation.get("parameters", ()) if part["in"] == "path"
    }


@pytest.mark.parametrize("call", sorted(ROUTES))
def test_a_call_has_its_responses(call: str) -> None:
    responses = OPERATIONS[call]["responses"]
    successes = {status for status in responses if status < "400"}
    assert successes and "500" not in responses
    for status in successes - {"101", "204", "304"}:
        content = responses[status]["content"]
        assert all(kind["schema"] for kind in content.values()), status
    for status in set(responses) - successes:
        assert responses[status]["description"].endswith(".")
        schema = responses[status]["content"]["application/json"]["schema"]
        assert schema == {"$ref": "#/components/schemas/ErrorEnvelope"}, status
    assert {"401", "403", "422", "429", "503"} <= set(responses)


@pytest.mark.parametrize("call", sorted(ROUTES))
def test_a_call_names_the_credentials_that_permit_it(call: str) -> None:
    operation = OPERATIONS[call]
    declared = list(requirements(ROUTES[call].dependant))
    if call in OPEN:
        assert not declared and "security" not in operation
        return
    schemes = {name for choice in operation["security"] for name in choice}
    assert schemes == ({"session"} if declared[0].session_only else {"session", "token"})
    assert declared[0].description in operation["description"]
