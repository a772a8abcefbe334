#!/usr/bin/env bash
# Make an image without a registry: scripts/make-image.sh [code-server|jupyterlab]
# `scripts/make-image.sh tar NAME` stops before the import, so it needs no Docker Engine.
#
# Debian's packages come from debootstrap, code-server and its Node from `codehub ide install`,
# JupyterLab from scripts/install-jupyterlab.sh. The tools directory keeps Debian and each image as
# a tar, so a repeat only imports.
set -euo pipefail
cd "$(dirname "$0")/.."

only_tar=
[[ ${1:-} != tar ]] || { only_tar=1; shift; }
name=${1:-code-server}
tools=${CODEHUB_TOOLS_DIR:?}
suite=bookworm
suite_python=python3.11
system=images/code-server/packages.txt
packages=$(paste -sd, "$system")

log_step() { printf '\033[1m==> %s\033[0m\n' "$1"; }
fail() { echo "make-image.sh: $1" >&2; exit 1; }

base=$tools/images/$suite-$(sha256sum "$system" | cut -c1-12).tar
staging=$(mktemp -d "${TMPDIR:-/tmp}/codehub-image-XXXXXX")
trap 'rm -rf "$staging"' EXIT

make_base() {
  [[ $(id -u) == 0 ]] || fail "debootstrap needs root: sudo make image (or docker build images/$name)"
  [[ ! -e $base ]] || return 0
  command -v debootstrap >/dev/null || { apt-get update -qq && apt-get install -y -qq debootstrap; }
  log_step "Downloading Debian's packages"
  mkdir -p "$tools/images"
  debootstrap --variant=minbase --include="$packages" "$suite" "$staging/root" ${DEBIAN_MIRROR:-} >"$staging/log" \
    || { tail -20 "$staging/log" "$staging/root/debootstrap/debootstrap.log" >&2 || true; fail "debootstrap failed"; }
  rm -rf "$staging"/root/var/cache/apt/archives/*.deb "$staging"/root/var/lib/apt/lists/*
  tar -C "$staging/root" -cf "$base.new" .
  mv "$base.new" "$base"
  rm -rf "$staging/root"
}

case $name in
  code-server)
    version=$(sed -n 's/^CODE_SERVER_VERSION = "\(.*\)"/\1/p' codehub/cli/ide.py)
    sources=(codehub/cli/ide.py)
    built_in=codercom/code-server:$version
    port=8080
    entry='["code-server", "--bind-addr", "0.0.0.0:8080", "--auth", "none", "--disable-telemetry", "--disable-update-check", "--disable-workspace-trust"]'
    command='["/home/coder"]'
    ;;
  jupyterlab)
    version=$(sed -n 's/^jupyterlab==\([^ ]*\).*/\1/p' images/jupyterlab/requirements.lock)
    sources=(scripts/install-jupyterlab.sh images/jupyterlab/{requirements.lock,jupyter_server_config.py,overrides.json})
    built_in=
    port=8888
    entry='["jupyterlab", "--ServerApp.ip=0.0.0.0", "--ServerApp.port=8888"]'
    command='[]'
    ;;
  *) fail "unknown image $name: choose code-server or jupyterlab" ;;
esac
image=codehub/$name:$version
recipe=$(cat scripts/make-image.sh "$system" "${sources[@]}" | sha256sum | cut -c1-16)
tar=$tools/images/$name-$recipe.tar

install_code_server() {
  mkdir -p "$opt/bin"
  cp -L "$tools/bin/node" "$opt/bin/node"
  cp -a "$tools/code-server-$version" "$opt/"
  ln -s /opt/codehub/bin/node "$root/usr/local/bin/node"
  start="/opt/codehub/bin/node /opt/codehub/code-server-$version/node_modules/code-server"
}

install_jupyterlab() {
  local installed
  scripts/install-jupyterlab.sh
  installed=$tools/bin/$(grep -o '\.jupyterlab-[^/"]*' "$tools/bin/jupyterlab")
  [[ -d $installed/lib/$suite_python ]] || fail "the image needs $suite_python, and this system has another Python: use docker build images/jupyterlab"
  mkdir -p "$opt"
  cp -a "$installed" "$opt/jupyterlab"
  start="/opt/codehub/jupyterlab/bin/python -m jupyterlab"
}

make_tar() {
  [[ ! -e $tar ]] || return 0
  make_base
  log_step "Assembling $name $version"
  root=$staging/root
  opt=$root/opt/codehub
  mkdir -p "$root"
  tar -C "$root" -xf "$base"
  mkdir -p "$root/home/coder"
  "install_${name//-/_}"
  printf '#!/bin/sh\nexec %s "$@"\n' "$start" >"$root/usr/local/bin/$name"
  chmod 755 "$root/usr/local/bin/$name"
  chown -R 0:0 "$opt"
  echo 'coder:x:1000:1000::/home/coder:/bin/bash' >>"$root/etc/passwd"
  echo 'coder:x:1000:' >>"$root/etc/group"
  chown 1000:1000 "$root/home/coder"
  tar -C "$root" -cf "$tar.new" .
  rm -rf "$root" "$tools/images/$name"-*.tar
  mv "$tar.new" "$tar"
}

if [[ -n $only_tar ]]; then
  make_tar
  exit 0
fi

docker version --format '{{.Server.Version}}' >/dev/null 2>&1 \
  || fail "no Docker Engine responds${DOCKER_HOST:+ at $DOCKER_HOST}: start one (apt-get install docker.io), or set DOCKER_HOST"
if [[ $(docker image inspect --format '{{index .Config.Labels "codehub.recipe"}}' "$image" 2>/dev/null) == "$recipe" ]]; then
  log_step "$image is up to date"
  exit 0
fi
make_tar

log_step "Importing $image"
docker import \
  --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 SHELL=/bin/bash HOME=/home/coder' \
  --change 'USER 1000:1000' --change 'WORKDIR /home/coder' --change "EXPOSE $port" \
  --change "ENTRYPOINT $entry" --change "CMD $command" --change "LABEL codehub.recipe=$recipe" \
  "$tar" "$image" >/dev/null
if [[ -n $built_in ]] && ! docker image inspect "$built_in" >/dev/null 2>&1; then
  docker tag "$image" "$built_in"
  log_step "Tagged it as $built_in too, the name in the built-in list of images"
fi
log_step "$image is ready"
