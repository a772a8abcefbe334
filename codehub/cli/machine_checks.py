"""Does this machine have what CodeHub needs?"""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from codehub.cli.findings import Finding, fail, ok, warn
from codehub.cli.ide import CODE_SERVER_VERSION
from codehub.settings import Settings

PYTHON = (3, 11)


def check_machine(settings: Settings) -> list[Finding]:
    return [_python(), _tar(), _ide(settings), _dashboard(), *_disk(settings)]


def _python() -> Finding:
    version = platform.python_version()
    if sys.version_info < PYTHON:
        return fail("python", f"{version} is too old", "install Python 3.11 or later, then `make install`")
    return ok("python", f"{version} at {sys.executable}")


def _tar() -> Finding:
    outcome = _run(["tar", "--version"])
    if outcome is None or "GNU tar" not in outcome.stdout:
        return fail("tar", "GNU tar is missing; homes are archived with it", "apt-get install tar")
    return ok("tar", outcome.stdout.splitlines()[0])


def _ide(settings: Settings) -> Finding:
    program = settings.tools_dir / "bin" / "code-server"
    if not program.exists():
        return fail("code-server", f"is not in {settings.tools_dir}", "codehub ide install")
    with tempfile.TemporaryDirectory() as home:  # it writes a configuration file wherever it runs first
        outcome = _run([str(program), "--version"], {"PATH": os.defpath, "HOME": home})
    found = re.search(r"^\d+\.\d+\.\d+", outcome.stdout if outcome else "", re.MULTILINE)
    if outcome is None or outcome.returncode != 0 or found is None:
        return fail("code-server", f"{program} does not run", "remove it, then `codehub ide install`")
    if found.group() != CODE_SERVER_VERSION:
        return warn("code-server", f"is {found.group()}, not {CODE_SERVER_VERSION}", "codehub ide install")
    return ok("code-server", f"{found.group()} in {settings.tools_dir}")


def _dashboard() -> Finding:
    package = Path(__file__).resolve().parents[1]
    for place in (package / "dashboard", package.parent / "web" / "dist"):
        if (place / "index.html").is_file():
            return ok("dashboard", f"built, in {place}")
    return fail("dashboard", "is not built", "make install")


def _disk(settings: Settings) -> list[Finding]:
    place = settings.data_dir.absolute()
    while not place.exists():
        place = place.parent
    free, reserve = shutil.disk_usage(place).free, settings.disk_reserve_bytes
    words = f"{free >> 20:,} MiB free below {place}, {reserve >> 20:,} MiB of them in reserve"
    if free < reserve:
        return [
            fail("disk", f"{words}: starts and restores are refused", "free some space, or move the data")
        ]
    if free < 3 * reserve:
        return [warn("disk", words, "soon there is no room for starts and restores")]
    return [ok("disk", words)]


def _run(
    command: list[str], environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=False, env=environment
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
