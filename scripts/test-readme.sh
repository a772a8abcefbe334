#!/usr/bin/env bash
# Run the commands of the README as a new user: clone the committed state into an empty directory,
# with an empty home and empty caches. Remove everything afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."

repository=$PWD
base=$(mktemp -d /tmp/readme-XXXXXX)
chmod 711 "$base"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
running=

log_step() { printf '\033[1m==> %s\033[0m\n' "$*"; }

clean_up() {
  if [[ -n $running ]] && kill -0 "$running" 2>/dev/null; then
    kill -TERM "$running"
    wait "$running" || true
  fi
  rm -rf "$base"
}
trap clean_up EXIT

# Environment of a new machine. From the caller it has only PATH and the access to package
# registries.
fresh=(env -i PATH="$PATH" LANG=C.UTF-8 HOME="$base/home" XDG_CACHE_HOME="$base/cache" REPOSITORY="file://$repository"
  CODEHUB_TOOLS_DIR="$base/tools" CODEHUB_DATA_DIR="$base/data" PORT="$port" npm_config_cache="$base/npm" PIP_CACHE_DIR="$base/pip")
while IFS='=' read -r name _; do
  fresh+=("$name=${!name}")
done < <(env | grep -E '^(PIP_(CERT|INDEX_URL|FIND_LINKS|DEFAULT_TIMEOUT)|NODE_EXTRA_CA_CERTS|SSL_CERT_FILE|[a-zA-Z]+_(proxy|PROXY))=' || true)
if [[ -f ~/.npmrc ]]; then # the registry of this machine is not part of the README
  fresh+=("npm_config_userconfig=$HOME/.npmrc")
fi
mkdir -p "$base/home"

# The README's only shell block: the first line downloads the code, the second one runs it.
mapfile -t commands < <(awk '/^```sh$/ {inside = 1; next} /^```$/ {inside = 0} inside' README.md)
[[ ${#commands[@]} == 2 ]] || { echo "README.md has ${#commands[@]} commands instead of two" >&2; exit 1; }

start() { # start LOG: run the README's last command, and wait until it prints that CodeHub is ready
  (cd "$base/codehub" && exec "${fresh[@]}" setsid bash -c "exec ${commands[1]}") >"$1" 2>&1 &
  running=$!
  local began=$SECONDS
  until grep -q '^CodeHub is ready at ' "$1"; do
    kill -0 "$running" 2>/dev/null || { tail -n 60 "$1"; echo "'${commands[1]}' ended early" >&2; exit 1; }
    ((SECONDS - began < 1500)) || { tail -n 60 "$1"; echo "'${commands[1]}' is not ready after 1500 s" >&2; exit 1; }
    sleep 0.2
  done
  log_step "ready after $((SECONDS - began)) s: $(grep '^CodeHub is ready at ' "$1")"
}

stop() {
  kill -TERM -- "-$running"
  wait "$running" || true
  running=
}

sign_in() { # sign_in PASSWORD
  curl --silent --show-error --fail --cookie-jar "$base/cookies" --header 'Content-Type: application/json' \
    --data "{\"username\": \"admin\", \"password\": \"$1\"}" "http://localhost:$port/api/v1/login"
  echo
}

log_step "${commands[0]}"
(cd "$base" && "${fresh[@]}" bash -c "${commands[0]}")

log_step "${commands[1]}"
start "$base/first.log"
password=$(sed -n 's/^  password: //p' "$base/first.log")
[[ -n $password ]] || { echo "the first start printed no password" >&2; exit 1; }
sign_in "$password"
curl --silent --fail "http://localhost:$port/" | grep -q '<html' || { echo "the gateway serves no dashboard" >&2; exit 1; }
created=$(curl --silent --show-error --fail --cookie "$base/cookies" --header 'Content-Type: application/json' \
  --data '{"name": "from the README", "desired_state": "ARCHIVED"}' "http://localhost:$port/api/v1/workspaces")
log_step "created a workspace: ${created:0:60}..."
stop

log_step "${commands[1]} (again)"
began=$SECONDS
start "$base/second.log"
((SECONDS - began <= 30)) || { echo "the second start took $((SECONDS - began)) s" >&2; exit 1; }
! grep -q '^  password: ' "$base/second.log" || { echo "the second start created a new password" >&2; exit 1; }
sign_in "$password"
curl --silent --fail --cookie "$base/cookies" "http://localhost:$port/api/v1/workspaces" | grep -q 'from the README' \
  || { echo "the workspace of the first start is missing" >&2; exit 1; }
stop
log_step "The README is correct."
