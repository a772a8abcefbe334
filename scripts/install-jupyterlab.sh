#!/usr/bin/env bash
# Install JupyterLab for the process runtime into the tools directory, unless this version is there.
#
# It is below bin/, which every workspace can read. It runs on the Python in /usr, which every
# workspace can read too. The scripts that pip writes are not used, because they contain the path of
# the staging directory.
set -euo pipefail
cd "$(dirname "$0")/.."

recipe=images/jupyterlab
version=$(sed -n 's/^jupyterlab==\([^ ]*\).*/\1/p' "$recipe/requirements.lock")
digest=$(cat scripts/install-jupyterlab.sh "$recipe"/{requirements.lock,jupyter_server_config.py,overrides.json} | sha256sum | cut -c1-12)
tools=${CODEHUB_TOOLS_DIR:?}
python=${JUPYTERLAB_PYTHON:-/usr/bin/python3}
installed=$tools/bin/.jupyterlab-$version-$digest

fail() { echo "JupyterLab: $1" >&2; exit 1; }

if [[ ! -d $installed ]]; then
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
    || fail "$python is missing or older than 3.11. Workspaces can only use the system's Python: install a newer one"
  mkdir -p "$tools/bin"
  staging=$(mktemp -d "$tools/.staging-jupyterlab-XXXXXX")
  trap 'rm -rf "$staging"' EXIT
  chmod 755 "$staging"
  umask 022
  # With --system-site-packages, packages that a notebook installs go to the home.
  "$python" -m venv --without-pip --system-site-packages "$staging/venv"
  echo "Installing JupyterLab $version (220 MB)"
  .venv/bin/python -m pip --python "$staging/venv/bin/python" install --quiet --disable-pip-version-check \
    --ignore-installed --only-binary :all: --require-hashes --requirement "$recipe/requirements.lock"
  install -D -m 644 -t "$staging/venv/etc/jupyter" "$recipe/jupyter_server_config.py"
  install -D -m 644 -t "$staging/venv/share/jupyter/lab/settings" "$recipe/overrides.json"
  mv -T "$staging/venv" "$installed"
fi

wrapper=$tools/bin/jupyterlab
cat >"$wrapper.new" <<SCRIPT
#!/bin/sh
bin=\$(dirname "\$(readlink -f "\$0")")
exec "\$bin/$(basename "$installed")/bin/python" -m jupyterlab "\$@"
SCRIPT
chmod 755 "$wrapper.new"
mv "$wrapper.new" "$wrapper"
