#!/usr/bin/env bash
# Install the system packages that CodeHub needs (`run`), or those that the tests need besides
# (`test`). Without root, print the command that installs the missing ones, and exit with 1.
set -euo pipefail
cd "$(dirname "$0")/.."

purpose=${1:?run or test}
tools=${CODEHUB_TOOLS_DIR:?}
missing=()

need() { # need PACKAGE CONDITION...
  local package=$1
  shift
  "$@" >/dev/null 2>&1 || missing+=("$package")
}

has_header() { echo "#include <$1>" | g++ -E -x c++ - ; }

needs_compiler() { # to build code-server, or Redis for a Python version without a wheel of it
  [[ ! -x $tools/bin/code-server ]] || "$python" -c 'import sys; sys.exit(sys.version_info < (3, 13))'
}

if ! python=$(scripts/find-python.sh); then
  python=python3
  missing+=(python3)
fi
need python3-venv "$python" -c 'import ensurepip, venv'
need bubblewrap command -v bwrap
need slirp4netns command -v slirp4netns
need tar command -v tar
if needs_compiler 2>/dev/null; then
  need g++ command -v g++
  need make command -v make
  need pkg-config command -v pkg-config
  need libkrb5-dev has_header gssapi/gssapi.h
fi
if [[ $purpose == test ]]; then
  need chromium command -v chromium
  need fonts-noto-cjk test -e /usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc
  need zstd command -v zstd
  need curl command -v curl
  need jq command -v jq
  need acl command -v setfacl
  need attr command -v setfattr
  need linux-libc-dev test -e /usr/include/asm-generic/unistd.h
  if [[ $(id -u) == 0 ]]; then # without root, the tests of Docker skip
    need docker.io command -v dockerd
    need iptables command -v iptables
    need iproute2 command -v ip
    need busybox-static test -x /bin/busybox
  fi
fi

((${#missing[@]})) || exit 0
if ! command -v apt-get >/dev/null; then
  echo "This system lacks packages. Debian calls them: ${missing[*]}. Install them, then try again." >&2
  exit 1
fi
line="apt-get install -y ${missing[*]}"
if [[ $(id -u) != 0 ]]; then
  printf 'This system lacks packages that CodeHub needs. Nothing was changed. Install them, then try again:\n\n    sudo %s\n\n' \
    "$line" >&2
  exit 1
fi
printf '\033[1m==> Installing %s\033[0m\n' "${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
# The tests start a separate engine. RUNLEVEL=1 keeps Debian's scripts from starting one for the
# whole machine.
[[ " ${missing[*]} " != *" docker.io "* ]] || export RUNLEVEL=1
apt-get update -qq
# shellcheck disable=SC2086
$line -qq --no-install-recommends
