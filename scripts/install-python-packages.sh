#!/usr/bin/env bash
# Install the locked Python packages into a virtual environment.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${1:?directory of the virtual environment}
if ! "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  rm -rf "$venv"
  "$(scripts/find-python.sh)" -m venv "$venv"
fi
"$venv/bin/python" -m pip install --disable-pip-version-check --require-hashes --requirement requirements.lock \
  | grep -v '^Requirement already satisfied' || [[ ${PIPESTATUS[0]} == 0 ]]
