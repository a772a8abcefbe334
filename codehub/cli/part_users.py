"""Users of the API, the access part and the gateway when `codehub up` runs as root."""

import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import typer

import codehub
from codehub.cli import part_mounts
from codehub.cli.errors import CommandError
from codehub.cli.findings import Finding, ok, warn
from codehub.cli.part_mounts import closed_directories
from codehub.host.parent_death import set_parent_death_signal
from codehub.settings import Settings
from codehub.storage.archive.open_object_store import directory_of

_NOBODY: Final = 65_534
_CAP_NET_BIND_SERVICE: Final = 10
_PR_SET_DUMPABLE: Final = 4
_PR_SET_KEEPCAPS: Final = 8
_PR_CAPBSET_READ: Final = 23
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_MOST_CAPABILITIES: Final = 64
_CAPABILITY_VERSION_3: Final = 0x20080522
_UNPRIVILEGED_PORTS: Final = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
ADVICE: Final = (
    "install CodeHub where every user may read it, and put the data directory below directories that every "
    "user may enter"
)

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class PartUser:
    """The user of one part. Its group has the same number."""

    uid: int
    servers_group: int
    """The group that may connect to the embedded PostgreSQL and Redis."""
    shown: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Trees that it needs below directories that only root may enter (see `part_mounts`)."""
    may_bind_low_ports: bool = False


@dataclass(frozen=True)
class PartUsers:
    """The user of each part; None stands for the user that runs `codehub up`."""

    api: PartUser | None = None
    access: PartUser | None = None
    gateway: PartUser | None = None
    why_root: str = ""
    """Why the parts run as root instead of as their own users."""

    @property
    def warning(self) -> str:
        return f"the API, the access part and the gateway run as root, because {self.why_root}: {ADVICE}"

    def of(self, part: str) -> PartUser | None:
        return {"api": self.api, "access": self.access, "gateway": self.gateway}.get(part)

    @property
    def servers_group(self) -> int | None:
        user = self.api or self.access or self.gateway
        return None if user is None else user.servers_group


def choose_part_users(settings: Settings) -> PartUsers:
    """Return the users of the parts. The data directory exists already."""
    if os.geteuid() != 0:
        return PartUsers()
    # Workspaces have the ids above WORKSPACE_UID_BASE. The lowest base is next to the id of
    # `nobody`.
    first = settings.workspace_uid_base
    first = first if first - 4 > _NOBODY else _NOBODY
    api_uid = first - 1 if settings.api_uid is None else settings.api_uid
    gateway_uid = settings.gateway_uid if "gateway_uid" in settings.model_fields_set else first - 2
    access_uid = _access_uid(settings, first - 4)
    _check_different(api_uid, gateway_uid, access_uid)
    shown = closed_directories(_required_trees(settings))
    users = PartUsers(
        api=PartUser(api_uid, first - 3, shown) if api_uid else None,
        access=_access_user(PartUser(access_uid, first - 3, shown), settings) if access_uid else None,
        gateway=PartUser(gateway_uid, first - 3, shown, _is_low(settings.port)) if gateway_uid else None,
    )
    for user in (users.api, users.access, users.gateway):
        if user is not None and (reason := _why_user_cannot_run(user, settings.data_dir)):
            return PartUsers(why_root=reason)
    return users


def _access_uid(settings: Settings, default: int) -> int:
    """Return the user of the access part. On Docker it needs the engine's socket, so it stays root."""
    if settings.runtime == "docker":
        return 0
    return default if settings.access_uid is None else settings.access_uid


def _access_user(user: PartUser, settings: Settings) -> PartUser:
    """Show the archives to the access part, too. If it cannot run so, it serves no downloads of them."""
    archives = directory_of(settings.archive_store_url)
    if archives is None:
        return user
    shown = closed_directories([*_required_trees(settings), archives])
    shows_archives = replace(user, shown=shown)
    if shown == user.shown or _why_user_cannot_run(shows_archives, settings.data_dir):
        return user
    return shows_archives


def _check_different(api_uid: int, gateway_uid: int, access_uid: int) -> None:
    """Raise CommandError if two parts would have the same rights."""
    if api_uid and api_uid == gateway_uid:
        raise CommandError(f"the API and the gateway would both run as user id {api_uid}: change API_UID")
    if access_uid and access_uid in (api_uid, gateway_uid):
        raise CommandError(
            f"the access part and another part would both run as user id {access_uid}: change ACCESS_UID"
        )


def check_users(settings: Settings) -> list[Finding]:
    """Report the users that `codehub up` runs the API and the gateway as."""
    if os.geteuid() != 0 or not settings.data_dir.exists():
        return []
    users = choose_part_users(settings)
    if users.why_root:
        message = f"the API, the access part and the gateway run as root, because {users.why_root}"
        return [warn("users", message, ADVICE)]
    as_root = [part for part in _parts_with_users(settings) if users.of(part) is None]
    if as_root:
        advice = f"unset {' and '.join(f'{part.upper()}_UID' for part in as_root)}"
        return [warn("users", f"these parts run as root: {', '.join(as_root)}", advice)]
    assert users.api is not None and users.gateway is not None
    message = f"`codehub up` runs the API as user id {users.api.uid}, the gateway as {users.gateway.uid}"
    if users.access is not None:
        message = f"{message}, the access part as {users.access.uid}"
    return [ok("users", message), *_check_archive_reader(settings, users)]


def _check_archive_reader(settings: Settings, users: PartUsers) -> list[Finding]:
    is_service = directory_of(settings.archive_store_url) is None
    if not is_service or users.access is None or settings.archive_read_access_key_id:
        return []
    message = "the access part reads archives with credentials that can also delete them"
    advice = "set ARCHIVE_READ_ACCESS_KEY_ID and ARCHIVE_READ_SECRET_ACCESS_KEY (docs/archives.md)"
    return [warn("archives", message, advice)]


def _parts_with_users(settings: Settings) -> tuple[str, ...]:
    return ("api", "gateway") if settings.runtime == "docker" else ("api", "access", "gateway")


def _is_low(port: int) -> bool:
    """Return whether a process needs a capability to listen on the port."""
    try:
        return port < int(_UNPRIVILEGED_PORTS.read_text())
    except OSError:
        return port < 1024


def _required_trees(settings: Settings) -> list[Path]:
    """Return the trees that these parts use: modules, pages, sockets."""
    from codehub.api.dashboard_files import find_dist  # only `up` and `doctor` need it

    program = [Path(sys.base_prefix), Path(sys.prefix), *map(Path, codehub.__path__)]
    dist = find_dist()
    return [*program, *([] if dist is None else [dist]), settings.data_dir]


def _why_user_cannot_run(user: PartUser, data_dir: Path) -> str:
    """Try in a child to become the user and run the program; return why that fails, if it does."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        reason = "the reason is unknown"
        try:
            drop_to_user(user)
            reason = _first_inaccessible(data_dir)
        except OSError as error:
            reason = str(error)
        finally:
            os.write(writer, reason.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as result:
        reason = result.read()
    os.waitpid(pid, 0)
    return reason and f"user id {user.uid} cannot run them: {reason}"


def _first_inaccessible(data_dir: Path) -> str:
    """Return why this process cannot run the program, or nothing if it can."""
    for file in (os.__file__, codehub.__file__, typer.__file__):
        if not os.access(file, os.R_OK):
            return f"it may not read {file}"
    return "" if os.access(data_dir, os.X_OK) else f"it may not enter {data_dir}"


def reduced_environment(environment: Mapping[str, str], *, reads_archives: bool = False) -> dict[str, str]:
    """Return the environment without root's home directory and, mostly, the archive store's secrets."""
    kept = {
        name: value
        for name, value in environment.items()
        if reads_archives or not name.startswith(("AWS_", "ARCHIVE_URL", "ARCHIVE_READ_"))
    }
    return kept | {"HOME": "/nonexistent"}


def reader_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with the credentials that only read archives, if there are any (ADR 0040)."""
    key = environment.get("ARCHIVE_READ_ACCESS_KEY_ID")
    secret = environment.get("ARCHIVE_READ_SECRET_ACCESS_KEY")
    if not key or not secret:
        return dict(environment)
    kept = {name: value for name, value in environment.items() if name != "AWS_SESSION_TOKEN"}
    return kept | {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}


def drop_to_user(user: PartUser) -> None:
    """Change this process from root to the user, irreversibly.

    It keeps its open descriptors, and at most the capability to listen on low ports.
    """
    parent = os.getppid()
    if user.shown:
        part_mounts.enter_mount_namespace(user.shown)
    kept = 1 << _CAP_NET_BIND_SERVICE if user.may_bind_low_ports else 0
    _prctl(_PR_SET_KEEPCAPS, 1 if kept else 0)
    for capability in range(_MOST_CAPABILITIES):
        if _libc.prctl(_PR_CAPBSET_READ, capability, 0, 0, 0) == 1:
            _prctl(_PR_CAPBSET_DROP, capability)
    os.setgroups([user.servers_group])
    os.setresgid(user.uid, user.uid, user.uid)
    os.setresuid(user.uid, user.uid, user.uid)
    _set_capabilities(kept)
    _prctl(_PR_SET_KEEPCAPS, 0)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_DUMPABLE, 0)
    set_parent_death_signal(signal.SIGTERM, parent)  # a change of the user clears it


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise _last_error()


def _set_capabilities(kept: int) -> None:
    """Set the effective and permitted capabilities; only some of the low 32 are ever kept."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0)  # effective, permitted, inheritable; twice
    if _libc.capset(header, sets) != 0:
        raise _last_error()


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
