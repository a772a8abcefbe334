#!/usr/bin/env bash
# Makes the image codehub/code-server without a registry: Debian's packages by debootstrap, code-server and its Node
# as `codehub ide install` built them. What was made once is kept in the tools directory.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=${CODEHUB_TOOLS_DIR:?}
version=$(sed -n 's/^CODE_SERVER_VERSION = "\(.*\)"/\1/p' codehub/cli/ide.py)
image=codehub/code-server:$version
built_in=codercom/code-server:$version
suite=bookworm
packages=$(paste -sd, images/code-server/packages.txt)
recipe=$(cat scripts/make-image.sh images/code-server/packages.txt codehub/cli/ide.py | sha256sum | cut -c1-16)

say() { printf '\033[1m==> %s\033[0m\n' "$1"; }
fail() { echo "make image: $1" >&2; exit 1; }

docker version --format '{{.Server.Version}}' >/dev/null 2>&1 \
  || fail "no Docker engine answers${DOCKER_HOST:+ at $DOCKER_HOST}: start one (apt-get install docker.io), or set DOCKER_HOST"
if [[ $(docker image inspect --format '{{index .Config.Labels "codehub.recipe"}}' "$image" 2>/dev/null) == "$recipe" ]]; then
  say "$image is up to date"
  exit 0
fi
[[ $(id -u) == 0 ]] || fail "debootstrap needs root: sudo make image (or docker build images/code-server)"
command -v debootstrap >/dev/null || { apt-get update -qq && apt-get install -y -qq debootstrap; }

base=$tools/images/$suite-$(sha256sum images/code-server/packages.txt | cut -c1-12).tar
staging=$(mktemp -d "${TMPDIR:-/tmp}/codehub-image-XXXXXX")
trap 'rm -rf "$staging"' EXIT

if [[ ! -e $base ]]; then
  say "Fetching Debian's packages"
  mkdir -p "$tools/images"
  debootstrap --variant=minbase --include="$packages" "$suite" "$staging/root" ${DEBIAN_MIRROR:-} >"$staging/log" \
    || { tail -20 "$staging/log" "$staging/root/debootstrap/debootstrap.log" >&2 || true; fail "debootstrap failed"; }
  rm -rf "$staging"/root/var/cache/apt/archives/*.deb "$staging"/root/var/lib/apt/lists/*
  tar -C "$staging/root" -cf "$base.new" .
  mv "$base.new" "$base"
  rm -rf "$staging/root"
fi

say "Putting code-server $version together"
root=$staging/root
opt=$root/opt/codehub
mkdir -p "$root"
tar -C "$root" -xf "$base"
mkdir -p "$opt/bin" "$root/home/coder"
cp -L "$tools/bin/node" "$opt/bin/node"
cp -a "$tools/code-server-$version" "$opt/"
ln -s /opt/codehub/bin/node "$root/usr/local/bin/node"
cat >"$root/usr/local/bin/code-server" <<SCRIPT
#!/bin/sh
exec /opt/codehub/bin/node /opt/codehub/code-server-$version/node_modules/code-server "\$@"
SCRIPT
chmod 755 "$root/usr/local/bin/code-server"
chown -R 0:0 "$opt"
echo 'coder:x:1000:1000::/home/coder:/bin/bash' >>"$root/etc/passwd"
echo 'coder:x:1000:' >>"$root/etc/group"
chown 1000:1000 "$root/home/coder"

say "Importing $image"
tar -C "$root" -c . | docker import \
  --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 SHELL=/bin/bash HOME=/home/coder' \
  --change 'USER 1000:1000' --change 'WORKDIR /home/coder' --change 'EXPOSE 8080' \
  --change 'ENTRYPOINT ["code-server", "--bind-addr", "0.0.0.0:8080", "--auth", "none", "--disable-telemetry", "--disable-update-check", "--disable-workspace-trust"]' \
  --change 'CMD ["/home/coder"]' --change "LABEL codehub.recipe=$recipe" \
  - "$image" >/dev/null
if ! docker image inspect "$built_in" >/dev/null 2>&1; then
  docker tag "$image" "$built_in"
  say "It also goes by $built_in, which the built-in list of images names"
fi
say "$image is ready"
