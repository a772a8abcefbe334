"""What one gateway worker is told, and the origins that follow from it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import urlsplit

from codehub.domain.host_names import is_loopback
from codehub.domain.ids import ULID, ULID_LENGTH, is_ulid
from codehub.domain.images import Activity
from codehub.domain.limits import Limits
from codehub.domain.ports import parse_port
from codehub.gateway.certificate import CertificateFiles
from codehub.gateway.cookies import HOST_PREFIX, SESSION_COOKIE, WORKSPACE_COOKIE
from codehub.gateway.trusted_proxies import TrustedProxies

_PORT_LABEL = re.compile(rf"(.*)--({ULID})")
SMALLEST_SHARE = 64
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class Timeouts:
    """Seconds."""

    head: float = 10
    """From the first byte of a request to the end of its head: slowloris gets no further."""
    idle: float = 75
    """A kept-alive connection without a request."""
    body: float = 60
    """Between two pieces of a request body."""
    response: float = 60
    """From the whole request to the head of its response."""
    connect: float = 5
    write: float = 120
    """How long a client may refuse to read what it asked for."""
    linger: float = 2
    drain: float = 5
    ticket: int = 30


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
    activity: Mapping[str, Activity] = field(default_factory=dict)
    """How activity shows, by image; an image that is not named here counts as `any`."""
    activity_flush_interval: float = 30
    max_connections: int = 10_000
    max_connections_per_address: int = 0
    """Of one IPv4 address or IPv6 /64; 0 is a quarter of all."""
    internal_key: str | None = field(default=None, repr=False)
    """The key that shows the API, over TCP, that a request comes from a gateway."""
    trusted_proxies: TrustedProxies = field(default_factory=TrustedProxies)
    """Peers whose X-Forwarded-For names the client (a TLS terminator in front)."""
    tls: CertificateFiles | None = None
    """The port speaks TLS with this certificate; without one, plain HTTP."""
    timeouts: Timeouts = Timeouts()

    @property
    def connection_share(self) -> int:
        return self.max_connections_per_address or max(SMALLEST_SHARE, self.max_connections // 4)

    @cached_property
    def origins(self) -> "Origins":
        return Origins(self.public_base_url, self.apps_domain)


class Origins:
    """Which host is the platform, which one a workspace, and what their cookies are called."""

    def __init__(self, public_base_url: str, apps_domain: str) -> None:
        parts = urlsplit(public_base_url)
        self.scheme = parts.scheme
        self.secure = parts.scheme == "https"
        self.platform_host = self.normal(parts.netloc.lower())
        self.platform = f"{self.scheme}://{self.platform_host}"
        self.path_mode = not apps_domain
        self.apps_host = self._with_port(apps_domain.lower(), parts.port)
        self._suffix = f".{self.apps_host}"
        self.aliases = self._loopback_aliases(parts.hostname or "", parts.port)
        public = self.secure and not is_loopback(parts.hostname or "")
        # HSTS holds for every port of a host, and the host of another port than 443 may serve others as well.
        self.platform_stays_on_https = public and ":" not in self.platform_host
        self.workspaces_stay_on_https = self.platform_stays_on_https if self.path_mode else public
        prefix = HOST_PREFIX if self.secure else ""
        self.session_cookie = f"{prefix}{SESSION_COOKIE}".encode()
        self.workspace_cookie = f"{prefix}{WORKSPACE_COOKIE}".encode()

    def normal(self, host: str) -> str:
        """A host without the port that its scheme implies."""
        return host.removesuffix(":443" if self.secure else ":80")

    def workspace_of(self, host: str) -> str | None:
        """The workspace whose own origin this host is."""
        if self.path_mode or not host.endswith(self._suffix) or len(host) != ULID_LENGTH + len(self._suffix):
            return None
        workspace_id = host[:ULID_LENGTH]
        return workspace_id if is_ulid(workspace_id) else None

    def is_app_host(self, host: str) -> bool:
        """Whether this host is below the apps domain."""
        return not self.path_mode and host.endswith(self._suffix)

    def port_of(self, host: str) -> tuple[str, int | None] | None:
        """The workspace and the port whose own origin this host is; without a port when that is none."""
        if not self.is_app_host(host):
            return None
        label = _PORT_LABEL.fullmatch(host.removesuffix(self._suffix))
        return None if label is None else (label[2], parse_port(label[1]))

    def is_of_workspace(self, origin: str, workspace_id: str) -> bool:
        """Whether this is the origin of the workspace's IDE, or of one of its ports."""
        scheme, _, host = origin.partition("://")
        if scheme != self.scheme:
            return False
        host = self.normal(host)
        found = self.port_of(host)
        if found is not None:
            return found[0] == workspace_id and found[1] is not None
        return self.workspace_of(host) == workspace_id

    def workspace_host(self, workspace_id: str, port: int = 0) -> str:
        """The host of its IDE, or of one of its ports."""
        return f"{port}--{workspace_id}{self._suffix}" if port else workspace_id + self._suffix

    def workspace_origin(self, workspace_id: str, port: int = 0) -> str:
        return (
            self.platform if self.path_mode else f"{self.scheme}://{self.workspace_host(workspace_id, port)}"
        )

    def entrance(self, workspace_id: str, port: int = 0) -> str:
        """Where a session is shown, without the path within."""
        return f"{self.platform}/w/{workspace_id}" + (f"/proxy/{port}" if port else "")

    def _with_port(self, apps_domain: str, port: int | None) -> str:
        """Workspaces are behind the same public port as the platform."""
        if ":" in apps_domain or port is None:
            return self.normal(apps_domain)
        return self.normal(f"{apps_domain}:{port}")

    def _loopback_aliases(self, public: str, port: int | None) -> frozenset[str]:
        """Other names of this machine that people type; navigations there are sent to the one origin."""
        if public not in ("localhost", "127.0.0.1", "::1"):
            return frozenset()
        suffix = "" if port is None else f":{port}"
        names = {self.normal(f"{name}{suffix}") for name in _LOOPBACK}
        return frozenset(names - {self.platform_host})
