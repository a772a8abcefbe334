"""Print the schemas of the API's OpenAPI document, reduced to the parts that TypeScript types need.

Titles and descriptions are removed, so that a new docstring does not change the generated types.
"""

import json
import sys
from typing import Any

from codehub import openapi_document
from codehub.api.app import create_app
from codehub.settings import Settings

Schema = dict[str, Any]


def reduce_schema(schema: Schema, schemas: dict[str, Schema]) -> Schema:
    reduced = {key: value for key, value in schema.items() if key not in ("title", "description")}
    if "$ref" in reduced.get("propertyNames", ()):
        return {"type": "object", "properties": _properties_of_enum(reduced, schemas)}
    for key in ("items", "additionalProperties"):
        if isinstance(reduced.get(key), dict):
            reduced[key] = reduce_schema(reduced[key], schemas)
    if "anyOf" in reduced:
        reduced["anyOf"] = [reduce_schema(part, schemas) for part in reduced["anyOf"]]
    if "properties" in reduced:
        reduced["properties"] = {
            name: reduce_schema(part, schemas) for name, part in reduced["properties"].items()
        }
    return reduced


def _properties_of_enum(schema: Schema, schemas: dict[str, Schema]) -> dict[str, Schema]:
    """Return one optional property per possible key: openapi-typescript ignores propertyNames."""
    name = schema["propertyNames"]["$ref"].rpartition("/")[2]
    value = reduce_schema(schema["additionalProperties"], schemas)
    return dict.fromkeys(schemas[name]["enum"], value)


def main() -> None:
    document = create_app(Settings(), openapi_document.describe).openapi()
    schemas = document["components"]["schemas"]
    components = {"schemas": {name: reduce_schema(schema, schemas) for name, schema in schemas.items()}}
    json.dump(
        {"openapi": document["openapi"], "info": document["info"], "paths": {}, "components": components},
        sys.stdout,
    )


if __name__ == "__main__":
    main()
