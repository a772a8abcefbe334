"""The OpenAPI document of all calls: those that the API serves, and those of the access part.

Neither part imports it: `codehub.cli` hands it to the API.
"""

from typing import Any

from fastapi import FastAPI

from codehub.access.app import make_router

Document = dict[str, Any]


def describe(api: FastAPI) -> Document:
    """Return the API's document with the calls of the access part."""
    document = FastAPI.openapi(api)
    access = FastAPI(title=api.title)
    access.include_router(make_router())
    return merged(document, access.openapi())


def merged(document: Document, other: Document) -> Document:
    """Add the paths and schemas of another document. Schemas of one name must be the same."""
    schemas = document["components"]["schemas"]
    for name, schema in other["components"]["schemas"].items():
        if schemas.setdefault(name, schema) != schema:
            raise ValueError(f"two schemas of the OpenAPI document are called {name}: rename one")
    document["paths"] |= other["paths"]
    return document
