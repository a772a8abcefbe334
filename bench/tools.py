"""Programs that the benchmarks need besides CodeHub's own requirements."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.services import TOOLS_DIR

PROXY_VERSION = "5.3.0"
PACKAGES = {"nginx": "nginx-light", "wrk": "wrk", "taskset": "util-linux", "zstd": "zstd", "tar": "tar"}
SERVICE_POLICY = Path("/usr/sbin/policy-rc.d")


class MissingToolError(Exception):
    """A missing program, without which a part cannot be measured."""


def extend_path() -> None:
    """Put CodeHub's tools directory first in PATH, and Debian's directories of servers last."""
    os.environ["PATH"] = os.pathsep.join([str(TOOLS_DIR / "bin"), os.environ["PATH"], "/usr/sbin", "/sbin"])


def require(*programs: str) -> None:
    """Raise MissingToolError unless these programs are installed. Root installs missing ones."""
    if not (missing := [name for name in programs if shutil.which(name) is None]):
        return
    command = ["apt-get", "install", "-y", *(PACKAGES.get(name, name) for name in missing)]
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise MissingToolError(f"it needs {', '.join(missing)} (on Debian: sudo {' '.join(command)})")
    print(f"Installing {', '.join(missing)}", flush=True)
    _install(command)
    if missing := [name for name in programs if shutil.which(name) is None]:
        raise MissingToolError(f"{', '.join(missing)} could not be installed")


def _install(command: list[str]) -> None:
    """Install packages, and keep Debian from starting a web server on port 80 with them."""
    set_policy = not SERVICE_POLICY.exists()
    if set_policy:
        SERVICE_POLICY.write_text("#!/bin/sh\nexit 101\n")
        SERVICE_POLICY.chmod(0o755)
    try:
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for step in (["apt-get", "update", "-qq"], [*command, "-qq", "--no-install-recommends"]):
            subprocess.run(step, env=environment, check=False, stdout=subprocess.DEVNULL)
    finally:
        if set_policy:
            SERVICE_POLICY.unlink()


def install_http_proxy() -> Path:
    """Install configurable-http-proxy into the tools directory if missing; return its program."""
    require("node", "npm")
    directory = TOOLS_DIR / f"configurable-http-proxy-{PROXY_VERSION}"
    if not directory.is_dir():
        print(f"Installing configurable-http-proxy {PROXY_VERSION}", flush=True)
        staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=TOOLS_DIR))
        install = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(staging)]
        done = subprocess.run([*install, f"configurable-http-proxy@{PROXY_VERSION}"], check=False)
        if done.returncode != 0:
            shutil.rmtree(staging)
            raise MissingToolError(f"npm could not install configurable-http-proxy {PROXY_VERSION}")
        staging.rename(directory)
    return directory / "node_modules/configurable-http-proxy/bin/configurable-http-proxy"
