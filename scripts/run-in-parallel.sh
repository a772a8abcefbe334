#!/usr/bin/env bash
# Run commands in parallel. The last one has the terminal, and the output of the others follows it.
# Then print each command's time and result, and the commands that repeat the failed tests. Exit
# with 1 if a command failed.
set -uo pipefail

logs=$(mktemp -d)
repeat=test-results/repeat-failed
commands=("$@")
last=$((${#commands[@]} - 1))
others=()
trap 'for pid in "${others[@]}"; do kill -- "-$pid" 2>/dev/null; done; rm -rf "$logs"' EXIT

timed() { # timed NUMBER: run a command, and record its time and exit code
  local began=$SECONDS code=0
  ${commands[$1]} || code=$?
  echo "$((SECONDS - began)) $code" >"$logs/$1.end"
}

set -m # one process group for each command, so that the trap ends its children too
for number in "${!commands[@]}"; do
  ((number == last)) && continue
  timed "$number" >"$logs/$number" 2>&1 </dev/null &
  others+=($!)
done
set +m
timed "$last"
wait "${others[@]}" 2>/dev/null

outcome=0
for number in "${!commands[@]}"; do
  ((number == last)) || cat "$logs/$number"
done
echo
for number in "${!commands[@]}"; do
  read -r seconds code <"$logs/$number.end"
  printf '%5d s  %s%s\n' "$seconds" "${commands[$number]}" "$([[ $code == 0 ]] || echo "  FAILED ($code)")"
  [[ $code == 0 ]] || outcome=1
done
printf '%5d s  in total\n' "$SECONDS"
[[ ! -s $repeat ]] || { echo; echo "Failed tests, each with the command that repeats it alone:"; cat "$repeat"; }
exit "$outcome"
