"""Rejection of query parameters that a call does not have.

Without it, a misspelt one would be ignored: a call about one file would be about the whole home.
"""

from collections import Counter
from collections.abc import Iterator

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, APIWebSocketRoute
from starlette.requests import HTTPConnection

from codehub.domain.problems import ValidationFailed

LONGEST_NAME = 100
"""Characters of an unknown name that the answer repeats."""


async def check_query(connection: HTTPConnection) -> None:
    """Dependency of every route: reject unknown query parameters, and those that are given twice."""
    given = Counter(name for name, _ in connection.query_params.multi_items())
    if not given:
        return
    known = known_parameters(connection.scope["route"])
    for name, count in given.items():
        if name not in known:
            raise ValidationFailed(_unknown(name, known))
        if count > 1:
            raise ValidationFailed(f"{name}: is given {count} times. Give it once.")


def known_parameters(route: APIRoute | APIWebSocketRoute) -> list[str]:
    """Return the names of the query parameters of a route, in the order of their declaration."""
    return list(dict.fromkeys(_names(route.dependant)))


def _names(dependant: Dependant) -> Iterator[str]:
    for parameter in dependant.query_params:
        yield parameter.alias
    for dependency in dependant.dependencies:
        yield from _names(dependency)


def _unknown(name: str, known: list[str]) -> str:
    shown = name[:LONGEST_NAME].encode("utf-8", "replace").decode()
    if not known:
        return f'"{shown}" is not a query parameter of this call, which has none.'
    return f'"{shown}" is not a query parameter of this call. It has: {", ".join(known)}.'
