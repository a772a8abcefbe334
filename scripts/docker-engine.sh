#!/usr/bin/env bash
# Runs a Docker Engine of its own in the foreground, all of it below one directory: what the tests use.
#
#   scripts/docker-engine.sh /tmp/engine      then: DOCKER_HOST=unix:///tmp/engine/docker.sock docker ps
#
# It has no default bridge. Beside another engine it leaves the packet filter alone, whose chains engines share.
set -euo pipefail

place=$(realpath -m "${1:?a directory for everything of this engine}")
command -v dockerd >/dev/null || { echo "dockerd is missing: apt-get install docker.io" >&2; exit 1; }
[[ $(id -u) == 0 ]] || { echo "an engine needs root" >&2; exit 1; }
mkdir -p "$place"
echo "{}" >"$place/daemon.json"
# Of an engine that was killed; the numbers may be anybody's by now.
rm -f "$place/pid" "$place/exec/containerd/containerd.pid"
filter=true
ip link show docker0 >/dev/null 2>&1 && filter=false
exec dockerd --data-root "$place/data" --exec-root "$place/exec" --pidfile "$place/pid" \
  --host "unix://$place/docker.sock" --containerd-namespace "codehub-test" \
  --containerd-plugins-namespace "codehub-test-plugins" --config-file "$place/daemon.json" \
  --bridge none --iptables=$filter --userland-proxy=false --log-level warn
