"""The file with the addresses and tokens of servers, and how a client finds its own.

{"current": "codehub.example.org", "servers": {"codehub.example.org": {"url": ..., "token": ...}}}
"""

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from codehub.client.errors import ConfigurationError
from codehub.client.requests import Server, check_token, normalized_url

_MODE: Final = 0o600
_MOST_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class SavedServer:
    """A server that someone has signed in to."""

    name: str
    url: str
    token: str = field(repr=False)
    username: str = ""


@dataclass(frozen=True)
class Credentials:
    """The content of the file."""

    servers: Mapping[str, SavedServer] = field(default_factory=dict)
    current: str = ""
    """Name of the server that is used if none is named."""

    def named(self, name: str) -> SavedServer:
        """Return a server by its name or its address."""
        if name in self.servers:
            return self.servers[name]
        if "://" in name:
            url = normalized_url(name)
            for server in self.servers.values():
                if server.url == url:
                    return server
        known = ", ".join(sorted(self.servers)) or "none"
        raise ConfigurationError(
            f"You are not signed in to {name!r}. Run `codehub login URL`. Known: {known}."
        )

    def with_server(self, server: SavedServer) -> "Credentials":
        """Return the credentials with one more server, which becomes the current one."""
        return Credentials({**self.servers, server.name: server}, server.name)

    def without(self, name: str) -> "Credentials":
        left = {each: server for each, server in self.servers.items() if each != name}
        current = self.current if self.current in left else next(iter(left), "")
        return Credentials(left, current)

    def with_current(self, name: str) -> "Credentials":
        return replace(self, current=self.named(name).name)


def credentials_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where the file is: CODEHUB_CREDENTIALS_FILE, or below XDG_CONFIG_HOME."""
    if chosen := environment.get("CODEHUB_CREDENTIALS_FILE"):
        return Path(chosen)
    config = environment.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(config) / "codehub" / "credentials.json"


def load(path: Path) -> Credentials:
    """Read the file. A missing one is empty; one that others may read is rejected."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return Credentials()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from error
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise ConfigurationError(f"{path} is not a file.")
        if os.name == "posix" and facts.st_mode & 0o077:
            raise ConfigurationError(f"Other users can read your tokens in {path}. Run: chmod 600 {path}")
        return _parse(file.read(_MOST_BYTES), path)


def save(path: Path, credentials: Credentials) -> None:
    """Replace the file by one of mode 0600, all at once."""
    content = {
        "current": credentials.current,
        "servers": {
            name: {"url": server.url, "token": server.token, "username": server.username}
            for name, server in credentials.servers.items()
        },
    }
    path = path.resolve()  # a link to a file elsewhere stays a link
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=".credentials-", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(content, file, indent=2)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(_MODE)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}.") from error


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let no other `codehub` change the file meanwhile, so that two logins keep both."""
    import fcntl

    path = path.resolve()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def find_server(
    url: str | None = None,
    token: str | None = None,
    name: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Server:
    """Return the server to call.

    In this order: what is given, CODEHUB_URL and CODEHUB_TOKEN, the credentials file. A token is only
    ever used with the address that it came with.
    """
    if name is not None:
        return _saved(load(credentials_path(environment)).named(name))
    environment_url = environment.get("CODEHUB_URL", "").strip()
    chosen = url or environment_url
    if not chosen:
        return _current(environment, token)
    address = normalized_url(chosen)
    if token is not None:
        return Server(address, check_token(token))
    environment_token = environment.get("CODEHUB_TOKEN", "")
    if environment_token and environment_url and normalized_url(environment_url) == address:
        return Server(address, check_token(environment_token))
    for saved in load(credentials_path(environment)).servers.values():
        if saved.url == address:
            return _saved(saved)
    raise ConfigurationError(
        f"There is no token for {address}. "
        f"Run `codehub login {address}`, or set CODEHUB_URL and CODEHUB_TOKEN."
    )


def _current(environment: Mapping[str, str], token: str | None) -> Server:
    if token is not None or environment.get("CODEHUB_TOKEN"):
        raise ConfigurationError("There is a token, but no address of a server. Set CODEHUB_URL as well.")
    credentials = load(credentials_path(environment))
    if not credentials.current:
        raise ConfigurationError(
            "You are not signed in. Run `codehub login URL`, or set CODEHUB_URL and CODEHUB_TOKEN."
        )
    return _saved(credentials.named(credentials.current))


def _saved(saved: SavedServer) -> Server:
    return Server(normalized_url(saved.url), check_token(saved.token))


def server_name(url: str) -> str:
    """Return the name under which a server is saved: its host, and its port if that is not the usual one."""
    return urlsplit(normalized_url(url)).netloc


def _parse(content: bytes, path: Path) -> Credentials:
    try:
        data: Any = json.loads(content or b"{}")
        servers = {
            str(name): SavedServer(
                str(name), str(each["url"]), str(each["token"]), str(each.get("username", ""))
            )
            for name, each in data.get("servers", {}).items()
        }
        current = str(data.get("current", ""))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        message = f"{path} is not a credentials file. Delete it, and run `codehub login URL` again."
        raise ConfigurationError(message) from error
    return Credentials(servers, current if current in servers else next(iter(servers), ""))
