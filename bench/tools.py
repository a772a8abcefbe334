"""What the measurements need besides CodeHub's own requirements."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.services import TOOLS_DIR

PROXY_VERSION = "5.3.0"
PACKAGES = {"nginx": "nginx-light", "wrk": "wrk", "taskset": "util-linux", "zstd": "zstd", "tar": "tar"}
POLICY = Path("/usr/sbin/policy-rc.d")


class MissingToolError(Exception):
    """A part cannot be measured here; the message says what it lacks."""


def use_tools() -> None:
    """Our own Node first, and the places where Debian keeps servers."""
    os.environ["PATH"] = os.pathsep.join([str(TOOLS_DIR / "bin"), os.environ["PATH"], "/usr/sbin", "/sbin"])


def need(*programs: str) -> None:
    """Makes sure that these are installed; root installs what is missing."""
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
    """Debian would start a web server on port 80 with the package, unless its policy says no."""
    forbid = not POLICY.exists()
    if forbid:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for step in (["apt-get", "update", "-qq"], [*command, "-qq", "--no-install-recommends"]):
            subprocess.run(step, env=environment, check=False, stdout=subprocess.DEVNULL)
    finally:
        if forbid:
            POLICY.unlink()


def http_proxy() -> Path:
    """The command of configurable-http-proxy in the tools directory, installed there where it is missing."""
    need("node", "npm")
    place = TOOLS_DIR / f"configurable-http-proxy-{PROXY_VERSION}"
    if not place.is_dir():
        print(f"Installing configurable-http-proxy {PROXY_VERSION}", flush=True)
        staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=TOOLS_DIR))
        install = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(staging)]
        done = subprocess.run([*install, f"configurable-http-proxy@{PROXY_VERSION}"], check=False)
        if done.returncode != 0:
            shutil.rmtree(staging)
            raise MissingToolError(f"npm could not install configurable-http-proxy {PROXY_VERSION}")
        staging.rename(place)
    return place / "node_modules/configurable-http-proxy/bin/configurable-http-proxy"
