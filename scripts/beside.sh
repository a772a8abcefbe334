#!/usr/bin/env bash
# Run commands side by side. The last one has the terminal; what the others said is shown after it, in their order.
# Fails when any of them does. Much of what they do is waiting, so together they take little longer than the longest.
set -uo pipefail

said=$(mktemp -d)
others=()
trap 'kill "${others[@]}" 2>/dev/null; rm -rf "$said"' EXIT

while [[ $# -gt 1 ]]; do
  $1 >"$said/${#others[@]}" 2>&1 &
  others+=($!)
  shift
done
$1
outcome=$?
for number in "${!others[@]}"; do
  wait "${others[$number]}" || outcome=$?
  cat "$said/$number"
done
exit "$outcome"
