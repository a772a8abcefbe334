#!/usr/bin/env bash
# Run the first command beside the second, which has the terminal; then show what the first one said.
# Fails when either does. The first only computes, the second mostly waits: together they take half the time.
set -uo pipefail

said=$(mktemp)
trap 'kill "$beside" 2>/dev/null; rm -f "$said"' EXIT
$1 >"$said" 2>&1 &
beside=$!
$2
outcome=$?
wait "$beside"
other=$?
cat "$said"
exit $((outcome ? outcome : other))
