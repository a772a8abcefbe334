"""The system user of the embedded servers when CodeHub runs as root."""

import os
import pwd
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SYSTEM_USER = "codehub"


class EmbeddedError(Exception):
    """Failure of an embedded server to run. The message states the cause and the remedy."""


@dataclass(frozen=True)
class ServerAccount:
    """User and group of a server. `switch` is false if this process has them already."""

    uid: int
    gid: int
    switch: bool

    @property
    def switch_uid(self) -> int | None:
        return self.uid if self.switch else None

    @property
    def switch_gid(self) -> int | None:
        return self.gid if self.switch else None

    def can_enter(self, directory: Path) -> bool:
        return self.run(["test", "-x", directory]).returncode == 0

    def give(self, path: Path, group: int | None = None) -> None:
        """Make the account the owner of a path, with its own group or another."""
        if self.switch:
            os.chown(path, self.uid, self.gid if group is None else group)

    def run(
        self, command: Sequence[str | Path], *, given: str = "", timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as this account, with `given` as its input; return its outcome."""
        return subprocess.run(
            [str(part) for part in command], cwd="/", capture_output=True, text=True, timeout=timeout,
            check=False, input=given, env=plain_environment(),
            user=self.switch_uid, group=self.switch_gid, extra_groups=[] if self.switch else None,
        )  # fmt: skip


def plain_environment() -> dict[str, str]:
    """Return the variables that a server needs. Our environment may hold secrets."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}


def own_account() -> ServerAccount:
    return ServerAccount(os.geteuid(), os.getegid(), switch=False)


def server_account() -> ServerAccount:
    """Return the account of the servers.

    PostgreSQL refuses to run as root, so root uses a system user.
    """
    if os.geteuid() != 0:
        return own_account()
    entry = _lookup() or _create()
    return ServerAccount(entry.pw_uid, entry.pw_gid, switch=True)


def _lookup() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        return None


def _create() -> pwd.struct_passwd:
    command = [
        "useradd", "--system", "--user-group", "--no-create-home",
        "--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin", SYSTEM_USER,
    ]  # fmt: skip
    if shutil.which(command[0]) is None:
        raise EmbeddedError(
            f"the system user {SYSTEM_USER!r} is missing and there is no useradd to create it"
        )
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    entry = _lookup()
    if entry is None:
        raise EmbeddedError(f"the system user {SYSTEM_USER!r} could not be created: {outcome.stderr.strip()}")
    return entry
