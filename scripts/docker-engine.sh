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
# An engine that was killed left these behind; their process ids may belong to others by now.
rm -f "$place/pid" "$place/containerd.sock" "$place/containerd.sock.ttrpc"
filter=true
ip link show docker0 >/dev/null 2>&1 && filter=false

# dockerd gives a containerd of its own 15 s to start, which a busy machine exceeds. This one ends with dockerd.
cat >"$place/containerd.toml" <<TOML
version = 2
root = "$place/data/containerd/daemon"
state = "$place/exec/containerd/daemon"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "$place/containerd.sock"
TOML
setpriv --pdeathsig KILL containerd --config "$place/containerd.toml" --log-level warn &
containerd=$!
until ctr --address "$place/containerd.sock" version >/dev/null 2>&1; do
  kill -0 "$containerd" 2>/dev/null || { echo "containerd ended while it started" >&2; exit 1; }
  sleep 0.1
done

exec dockerd --data-root "$place/data" --exec-root "$place/exec" --pidfile "$place/pid" \
  --containerd "$place/containerd.sock" \
  --host "unix://$place/docker.sock" --containerd-namespace "codehub-test" \
  --containerd-plugins-namespace "codehub-test-plugins" --config-file "$place/daemon.json" \
  --bridge none --iptables=$filter --userland-proxy=false --log-level warn
