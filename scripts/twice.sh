#!/usr/bin/env bash
# Run pytest, and once more what failed. For tests that drive a browser: beside other work it may be too late for what a
# person would wait for. What failed the first time is shown all the same; what fails twice fails.
set -uo pipefail

"$@" && exit
[[ $? -eq 1 ]] || exit 1
echo "Once more, what failed:"
exec "$@" --last-failed
