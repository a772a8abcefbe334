#!/usr/bin/env bash
# Generate web/src/api-types.ts from the API's OpenAPI document. With --check, only fail if it is
# out of date.
set -euo pipefail
cd "$(dirname "$0")/.."

types=web/src/api-types.ts
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The document must not depend on settings, so the caller's environment is cleared.
env -i .venv/bin/python scripts/print_openapi_schemas.py >"$work/openapi.json"
web/node_modules/.bin/openapi-typescript "$work/openapi.json" --output "$work/api-types.ts" \
  --default-non-nullable=false --root-types --root-types-no-schema-prefix >"$work/log" || { cat "$work/log" >&2; exit 1; }

if [[ ${1:-} != --check ]]; then
  cp "$work/api-types.ts" "$types"
elif ! diff -u "$types" "$work/api-types.ts" >&2; then
  echo "$types is out of date: run \`npm --prefix web run types\`." >&2
  exit 1
fi
