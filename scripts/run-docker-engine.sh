#!/usr/bin/env bash
# Run a separate Docker Engine in the foreground, with all its files below one directory. The tests
# use it.
#
#   scripts/run-docker-engine.sh /tmp/engine      then: DOCKER_HOST=unix:///tmp/engine/docker.sock docker ps
#
# It has no default bridge. If another engine runs, it does not touch the packet filter: engines
# share the chains.
set -euo pipefail

directory=$(realpath -m "${1:?directory for the files of this engine}")
command -v dockerd >/dev/null || { echo "dockerd is missing: apt-get install docker.io" >&2; exit 1; }
[[ $(id -u) == 0 ]] || { echo "a Docker Engine needs root: run this with sudo" >&2; exit 1; }
mkdir -p "$directory"
echo "{}" >"$directory/daemon.json"
# Remove what a killed engine left. Other processes may have its process ids now.
rm -f "$directory/pid" "$directory/containerd.sock" "$directory/containerd.sock.ttrpc"
filter=true
ip link show docker0 >/dev/null 2>&1 && filter=false

# dockerd would wait at most 15 s for a containerd that it starts, too short for a busy machine. So
# this script starts containerd. It ends with dockerd.
cat >"$directory/containerd.toml" <<TOML
version = 2
root = "$directory/data/containerd/daemon"
state = "$directory/exec/containerd/daemon"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "$directory/containerd.sock"
TOML
setpriv --pdeathsig KILL containerd --config "$directory/containerd.toml" --log-level warn &
containerd=$!
until ctr --address "$directory/containerd.sock" version >/dev/null 2>&1; do
  kill -0 "$containerd" 2>/dev/null || { echo "containerd ended while it started" >&2; exit 1; }
  sleep 0.1
done

exec dockerd --data-root "$directory/data" --exec-root "$directory/exec" --pidfile "$directory/pid" \
  --containerd "$directory/containerd.sock" \
  --host "unix://$directory/docker.sock" --containerd-namespace "codehub-test" \
  --containerd-plugins-namespace "codehub-test-plugins" --config-file "$directory/daemon.json" \
  --bridge none --iptables=$filter --userland-proxy=false --log-level warn
