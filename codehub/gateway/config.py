"""Configuration of a gateway worker, and the origins that follow from it (ADR 0005)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import urlsplit

from codehub.domain.apps_host import apps_host, port_label
from codehub.domain.cookie_names import SESSION_COOKIE, WORKSPACE_COOKIE, cookie_name
from codehub.domain.ids import ULID, ULID_LENGTH, is_ulid
from codehub.domain.images import Activity
from codehub.domain.loopback import is_loopback
from codehub.domain.ports import parse_port
from codehub.domain.user_limits import Limits
from codehub.gateway.certificate import CertificateFiles
from codehub.gateway.trusted_proxies import TrustedProxies

_PORT_LABEL = re.compile(rf"(.*)--({ULID})")
SMALLEST_SHARE = 64
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class Timeouts:
    """Seconds."""

    head: float = 10
    """From the first byte of a request to the end of its head (against slowloris)."""
    idle: float = 75
    """A kept-alive connection without a request."""
    body: float = 60
    """Between two pieces of a request body."""
    response: float = 60
    """From the whole request to the head of its response."""
    connect: float = 5
    write: float = 120
    """How long a client may leave a response unread."""
    linger: float = 2
    drain: float = 5
    ticket: int = 30
    access: float = 690
    """As `response`, from the access part: to wake a workspace (55 s), start a file agent and do its work."""


@dataclass(frozen=True)
class GatewayConfig:
    host: str
    port: int
    public_base_url: str
    apps_domain: str
    """`host[:port]` below which each workspace has its own origin; empty for the path mode."""
    api_upstream: str
    """`unix:/path` or `tcp:host:port`."""
    database_url: str
    redis_url: str
    limits: Limits
    access_upstream: str = ""
    """Address of the access part; empty if there is none."""
    activity: Mapping[str, Activity] = field(default_factory=dict)
    """How activity is recognised, by image. The default is `any`."""
    activity_flush_interval: float = 30
    max_connections: int = 10_000
    max_connections_per_address: int = 0
    """For one IPv4 address or IPv6 /64; 0 means a quarter of all."""
    internal_key: str | None = field(default=None, repr=False)
    """The key that proves to the API, over TCP, that a request comes from a gateway."""
    access_key: str | None = field(default=None, repr=False)
    """Likewise, to the access part."""
    trusted_proxies: TrustedProxies = field(default_factory=TrustedProxies)
    """Peers whose X-Forwarded-For names the client (a TLS terminator in front)."""
    tls: CertificateFiles | None = None
    """Certificate of the port, which speaks plain HTTP without one."""
    timeouts: Timeouts = Timeouts()

    @property
    def connection_share(self) -> int:
        return self.max_connections_per_address or max(SMALLEST_SHARE, self.max_connections // 4)

    @cached_property
    def origins(self) -> "Origins":
        return Origins(self.public_base_url, self.apps_domain)


class Origins:
    """The origins of the platform and of the workspaces, and the names of their cookies."""

    def __init__(self, public_base_url: str, apps_domain: str) -> None:
        parts = urlsplit(public_base_url)
        self.scheme = parts.scheme
        self.secure = parts.scheme == "https"
        self.platform_host = self.normal(parts.netloc.lower())
        self.platform = f"{self.scheme}://{self.platform_host}"
        self.path_mode = not apps_domain
        self.apps_host = self.normal(apps_host(apps_domain.lower(), public_base_url))
        self._suffix = f".{self.apps_host}"
        self.aliases = self._loopback_aliases(parts.hostname or "", parts.port)
        public = self.secure and not is_loopback(parts.hostname or "")
        # HSTS holds for every port of a host, and the host of another port than 443 may serve others as well.
        self.platform_stays_on_https = public and ":" not in self.platform_host
        self.workspaces_stay_on_https = self.platform_stays_on_https if self.path_mode else public
        self.session_cookie = cookie_name(SESSION_COOKIE, secure=self.secure).encode()
        self.workspace_cookie = cookie_name(WORKSPACE_COOKIE, secure=self.secure).encode()

    def normal(self, host: str) -> str:
        """Return a host without the port that its scheme implies."""
        return host.removesuffix(":443" if self.secure else ":80")

    def workspace_of(self, host: str) -> str | None:
        """Return the workspace whose origin has this host, or None."""
        if self.path_mode or not host.endswith(self._suffix) or len(host) != ULID_LENGTH + len(self._suffix):
            return None
        workspace_id = host[:ULID_LENGTH]
        return workspace_id if is_ulid(workspace_id) else None

    def is_app_host(self, host: str) -> bool:
        """Return whether this host is below the apps domain."""
        return not self.path_mode and host.endswith(self._suffix)

    def port_of(self, host: str) -> tuple[str, int | None] | None:
        """Return the workspace and the port whose origin has this host. An invalid port is None."""
        if not self.is_app_host(host):
            return None
        label = _PORT_LABEL.fullmatch(host.removesuffix(self._suffix))
        return None if label is None else (label[2], parse_port(label[1]))

    def is_of_workspace(self, origin: str, workspace_id: str) -> bool:
        """Return whether this is the origin of the workspace's IDE or of one of its ports."""
        scheme, _, host = origin.partition("://")
        if scheme != self.scheme:
            return False
        host = self.normal(host)
        found = self.port_of(host)
        if found is not None:
            return found[0] == workspace_id and found[1] is not None
        return self.workspace_of(host) == workspace_id

    def workspace_host(self, workspace_id: str, port: int = 0) -> str:
        """Return the host of its IDE, or of one of its ports."""
        return port_label(port, workspace_id) + self._suffix if port else workspace_id + self._suffix

    def workspace_origin(self, workspace_id: str, port: int = 0) -> str:
        return (
            self.platform if self.path_mode else f"{self.scheme}://{self.workspace_host(workspace_id, port)}"
        )

    def entry_url(self, workspace_id: str, port: int = 0) -> str:
        """Return the address of a workspace's entry on the platform."""
        return f"{self.platform}/w/{workspace_id}" + (f"/proxy/{port}" if port else "")

    def _loopback_aliases(self, public: str, port: int | None) -> frozenset[str]:
        """Return other names of this machine that people type. Navigations to them are redirected."""
        if public not in ("localhost", "127.0.0.1", "::1"):
            return frozenset()
        suffix = "" if port is None else f":{port}"
        names = {self.normal(f"{name}{suffix}") for name in _LOOPBACK}
        return frozenset(names - {self.platform_host})
