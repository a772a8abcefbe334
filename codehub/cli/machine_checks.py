"""Checks of this machine: programs, disk and quotas."""

import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from codehub.cli.findings import Finding, fail, ok, warn
from codehub.cli.ide import CODE_SERVER_VERSION
from codehub.domain.disk import is_below_multiple, shortages
from codehub.settings import Settings
from codehub.storage.volumes.free_space import free_space
from codehub.storage.volumes.quota import QuotaState, quota_state

PYTHON = (3, 11)
QUOTAS = ("HOME_QUOTA_BYTES", "HOME_QUOTA_FILES")


def check_machine(settings: Settings) -> list[Finding]:
    return [_python(), _tar(), _ide(settings), _dashboard(), *_disk(settings), check_quota(settings)]


def _python() -> Finding:
    version = platform.python_version()
    if sys.version_info < PYTHON:
        return fail("python", f"{version} is too old", "install Python 3.11 or later, then `make install`")
    return ok("python", f"{version} at {sys.executable}")


def _tar() -> Finding:
    outcome = _run_command(["tar", "--version"])
    if outcome is None or "GNU tar" not in outcome.stdout:
        return fail("tar", "GNU tar is missing; CodeHub archives homes with it", "apt-get install tar")
    return ok("tar", outcome.stdout.splitlines()[0])


def _ide(settings: Settings) -> Finding:
    program = settings.tools_dir / "bin" / "code-server"
    if not program.exists():
        return fail("code-server", f"is not in {settings.tools_dir}", "codehub ide install")
    with tempfile.TemporaryDirectory() as home:  # the first run writes a configuration file to the home
        outcome = _run_command([str(program), "--version"], {"PATH": os.defpath, "HOME": home})
    found = re.search(r"^\d+\.\d+\.\d+", outcome.stdout if outcome else "", re.MULTILINE)
    if outcome is None or outcome.returncode != 0 or found is None:
        return fail("code-server", f"{program} does not run", "remove it, then `codehub ide install`")
    if found.group() != CODE_SERVER_VERSION:
        return warn("code-server", f"is {found.group()}, not {CODE_SERVER_VERSION}", "codehub ide install")
    return ok("code-server", f"{found.group()} in {settings.tools_dir}")


def _dashboard() -> Finding:
    package = Path(__file__).resolve().parents[1]
    for directory in (package / "dashboard", package.parent / "web" / "dist"):
        if (directory / "index.html").is_file():
            return ok("dashboard", f"built, in {directory}")
    return fail("dashboard", "is not built", "make install")


def _existing(path: Path) -> Path:
    """Return the path, or its nearest parent that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def check_quota(settings: Settings) -> Finding:
    """Check quotas.

    A quota that is set and not enforced fails; without one the disk watchdog helps.
    """
    directory = _existing(settings.data_dir / "volumes")
    state, wanted = quota_state(directory), [name for name in QUOTAS if getattr(settings, name.lower())]
    if state is QuotaState.ENFORCED and os.geteuid() == 0:
        message = "user quotas are enforced" if wanted else "user quotas work and HOME_QUOTA_BYTES is not set"
        return ok("quota", f"{message} on the file system of {directory}")
    if state is QuotaState.ENFORCED:
        reason = "CodeHub does not run as root, so homes do not have users of their own"
    elif state is QuotaState.COUNTED:
        reason = f"the file system of {directory} counts what users store, but enforces no limits"
    else:
        reason = f"the file system of {directory} has no user quotas"
    if not wanted:
        return ok("quota", f"{reason}; homes share the disk, and the disk watchdog stops the largest")
    advice = (
        "run CodeHub as root; ext4: tune2fs -O quota DEVICE while unmounted, then mount it with usrquota; "
        "XFS: mount it with uquota"
    )
    return fail("quota", f"{' and '.join(wanted)} cannot take effect: {reason}", advice)


def _disk(settings: Settings) -> list[Finding]:
    directory = _existing(settings.data_dir)
    free, reserve = free_space(directory), settings.disk_reserve
    message = (
        f"{free.bytes >> 20:,} MiB free below {directory}, {reserve.bytes >> 20:,} MiB of them in reserve"
    )
    if free.files is not None:
        message = f"{message}; room for {free.files:,} more files, {reserve.files:,} of them in reserve"
    if shortages(free, reserve):
        message = f"{message}: starts and restores wait, and the largest running workspaces are stopped"
        return [fail("disk", message, "free some space, or move the data (docs/disk.md)")]
    if is_below_multiple(3, free, reserve):
        return [warn("disk", message, "free some space: starts and restores will soon have to wait")]
    return [ok("disk", message)]


def _run_command(
    command: list[str], environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=False, env=environment
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
