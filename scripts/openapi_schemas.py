"""Print the schemas of the API's OpenAPI document, reduced to what TypeScript types are made from.

Titles and descriptions are left out, so that a new docstring does not make the generated types stale.
"""

import json
import sys
from typing import Any

from codehub.api.app import create_app
from codehub.settings import Settings

Schema = dict[str, Any]


def reduced(schema: Schema, schemas: dict[str, Schema]) -> Schema:
    found = {key: value for key, value in schema.items() if key not in ("title", "description")}
    if "propertyNames" in found:
        return {"type": "object", "properties": _properties_of_enum(found, schemas)}
    for key in ("items", "additionalProperties"):
        if isinstance(found.get(key), dict):
            found[key] = reduced(found[key], schemas)
    if "anyOf" in found:
        found["anyOf"] = [reduced(part, schemas) for part in found["anyOf"]]
    if "properties" in found:
        found["properties"] = {name: reduced(part, schemas) for name, part in found["properties"].items()}
    return found


def _properties_of_enum(schema: Schema, schemas: dict[str, Schema]) -> dict[str, Schema]:
    """Return one optional property per possible key: openapi-typescript ignores propertyNames."""
    name = schema["propertyNames"]["$ref"].rpartition("/")[2]
    value = reduced(schema["additionalProperties"], schemas)
    return dict.fromkeys(schemas[name]["enum"], value)


def main() -> None:
    document = create_app(Settings()).openapi()
    schemas = document["components"]["schemas"]
    components = {"schemas": {name: reduced(schema, schemas) for name, schema in schemas.items()}}
    json.dump(
        {"openapi": document["openapi"], "info": document["info"], "paths": {}, "components": components},
        sys.stdout,
    )


if __name__ == "__main__":
    main()
