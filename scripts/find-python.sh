#!/usr/bin/env bash
# Print the first Python on PATH that is new enough. Exit with 1 if there is none.
set -euo pipefail
for name in python3 python3.14 python3.13 python3.12 python3.11; do
  if command -v "$name" >/dev/null && "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    command -v "$name"
    exit 0
  fi
done
exit 1
