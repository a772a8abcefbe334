"""Every route of the API declares what it requires of its caller, or is listed here as open."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from codehub.api.app import create_app
from codehub.asgi.callers import PermittedCaller
from codehub.domain.scopes import Requirement
from codehub.settings import Settings

OPEN = {("POST", "/api/v1/login"), ("GET", "/healthz")}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    data_dir: Path = tmp_path_factory.mktemp("data")
    return create_app(
        Settings(database_url="postgresql:///none", redis_url="redis://none", data_dir=data_dir)
    )


def requirements(dependant: Dependant) -> Iterator[Requirement]:
    if isinstance(dependant.call, PermittedCaller):
        yield dependant.call.requirement
    for dependency in dependant.dependencies:
        yield from requirements(dependency)


def test_every_route_declares_one_requirement(app: FastAPI) -> None:
    wrong = []
    for route in app.routes:
        if isinstance(route, APIRoute):
            declared = set(requirements(route.dependant))
            for method in route.methods:
                if len(declared) != ((method, route.path) not in OPEN):
                    wrong.append(f"{method} {route.path} declares {declared or 'nothing'}")
    assert not wrong, "\n".join(wrong)
