#!/usr/bin/env bash
# Run commands side by side. The last one has the terminal; what the others said is shown after it, in their order,
# but what failed after the rest, and its name at the very end. Fails when any of them does.
# Much of what they do is waiting, so together they take little longer than the longest.
set -uo pipefail

said=$(mktemp -d)
others=()
commands=("${@:1:$#-1}")
trap 'kill "${others[@]}" 2>/dev/null; rm -rf "$said"' EXIT

for number in "${!commands[@]}"; do
  ${commands[$number]} >"$said/$number" 2>&1 &
  others+=($!)
done
outcome=0
failed=()
${!#} || { outcome=$?; failed+=("${!#}"); }
last=()
for number in "${!others[@]}"; do
  if wait "${others[$number]}"; then
    cat "$said/$number"
  else
    outcome=$?
    last+=("$said/$number")
    failed+=("${commands[$number]}")
  fi
done
[[ $outcome -eq 0 ]] || cat "${last[@]}" </dev/null
[[ $outcome -eq 0 ]] || printf 'failed: %s\n' "${failed[@]}"
exit "$outcome"
