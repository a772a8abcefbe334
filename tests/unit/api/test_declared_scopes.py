"""Every route of the API and of the access part declares what it requires, or is listed here as open."""

from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute, APIWebSocketRoute, iter_route_contexts

from codehub.access import app as access
from codehub.api import app as api
from codehub.asgi.callers import requirements
from codehub.settings import Settings

OPEN = {("POST", "/api/v1/login"), ("GET", "/healthz")}


@pytest.fixture(params=[api.create_app, access.create_app], ids=["API", "access"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> FastAPI:
    made: FastAPI = request.param(
        Settings(database_url="postgresql:///none", redis_url="redis://none", data_dir=tmp_path)
    )
    return made


def test_every_route_declares_one_requirement(app: FastAPI) -> None:
    wrong, checked = [], 0
    for context in iter_route_contexts(app.routes):
        route = context.original_route
        if isinstance(route, APIRoute | APIWebSocketRoute):
            declared = set(requirements(route.dependant))
            for method in context.methods or ("WEBSOCKET",):
                checked += 1
                if len(declared) != ((method, context.path) not in OPEN):
                    wrong.append(f"{method} {context.path} declares {declared or 'nothing'}")
    assert checked > len(OPEN)
    assert not wrong, "\n".join(wrong)
