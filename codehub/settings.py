"""The settings of CodeHub, read from the environment and checked before anything starts."""

import os
from functools import cached_property
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from codehub.domain.apps_host import default_apps_domain
from codehub.domain.disk import Reserve
from codehub.domain.loopback import is_loopback
from codehub.domain.other_backends import Backends
from codehub.domain.ttl import MOST_AWAKE_CPU_PERCENT, TtlDefaults
from codehub.domain.user_limits import MAX_WORKSPACES_PER_USER
from codehub.domain.weak_settings import Weakness, is_too_wide
from codehub.setting_types import (
    ArchiveUrl,
    DatabaseUrl,
    Domain,
    InternalKey,
    Ipv4Networks,
    NetworkPool,
    Networks,
    OptionalPath,
    Origin,
    RedisUrl,
    Seconds,
    SocketAddress,
    UserId,
    WholeSeconds,
    parse_ipv4_networks,
    parse_networks,
)

SECRETS: Final = (
    "DATABASE_URL",
    "REDIS_URL",
    "ADMIN_PASSWORD",
    "INTERNAL_KEY",
    "ARCHIVE_READ_SECRET_ACCESS_KEY",
)
"""Settings whose values error messages do not repeat."""

MAX_INTERNAL_SOCKETS: Final = 16
"""Default internal addresses for parts of one kind on one data directory."""


def default_data_dir() -> Path:
    return Path("/var/lib/codehub") if os.geteuid() == 0 else Path.home() / ".local/share/codehub"


def default_tools_dir() -> Path:
    return Path("/var/cache/codehub") if os.geteuid() == 0 else Path.home() / ".cache/codehub"


class SettingsError(Exception):
    """Invalid setting. The message names it and its valid values."""


class Settings(BaseSettings):
    """Settings of CodeHub, one environment variable each. docs/configuration.md describes them."""

    model_config = SettingsConfigDict(extra="ignore", frozen=True, populate_by_name=True)

    database_url: DatabaseUrl = ""
    redis_url: RedisUrl = ""
    archive_url: ArchiveUrl = ""
    archive_read_access_key_id: str = ""
    archive_read_secret_access_key: str = Field(default="", repr=False)
    data_dir: Path = Field(default_factory=default_data_dir, validation_alias="CODEHUB_DATA_DIR")
    tools_dir: Path = Field(default_factory=default_tools_dir, validation_alias="CODEHUB_TOOLS_DIR")
    images_file: OptionalPath = None
    runtime: Literal["process", "docker"] = "process"
    insecure_process_runtime: bool = False
    docker_host: str = "unix:///var/run/docker.sock"
    docker_network_pool: NetworkPool = IPv4Network("10.222.0.0/16")
    docker_firewall: bool = True
    gateway_uid: UserId = Field(default_factory=os.geteuid)
    api_uid: UserId | None = None
    access_uid: UserId | None = None
    workspace_allow_egress: Ipv4Networks = ""
    workspace_uid_base: Annotated[int, Field(ge=65_536, le=1_000_000_000)] = 2_000_000

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 8080
    tls_cert_file: OptionalPath = None
    tls_key_file: OptionalPath = None
    trusted_proxies: Networks = ""
    api_listen: SocketAddress = ""
    api_upstream: SocketAddress = ""
    access_listen: SocketAddress = ""
    access_upstream: SocketAddress = ""
    internal_key: InternalKey = None
    public_base_url: Origin = ""
    apps_domain: Domain = None
    allow_insecure_http: bool = False
    gateway_workers: Annotated[int, Field(ge=1, le=256)] = Field(default_factory=lambda: os.cpu_count() or 1)
    gateway_max_connections: Annotated[int, Field(ge=16, le=1_000_000)] = 10_000
    gateway_max_connections_per_address: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    internal_listen: SocketAddress = ""
    part_timeout_seconds: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 60
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    coordinator_idle_interval: Seconds = 15
    coordinator_active_interval: Seconds = 1
    coordinator_active_duration: Seconds = 30
    coordinator_ttl_interval: Seconds = 60
    coordinator_gc_interval: Seconds = 14_400
    coordinator_disk_interval: Seconds = 10
    coordinator_leader_retry_interval: Seconds = 5

    reconciler_max_retries: Annotated[int, Field(ge=1, le=100)] = 3
    reconciler_retry_backoff: Seconds = 30
    reconciler_provisioning_timeout: Seconds = 300
    reconciler_create_empty_archive_timeout: Seconds = 300
    reconciler_starting_timeout: Seconds = 300
    reconciler_stopping_timeout: Seconds = 300
    reconciler_deleting_timeout: Seconds = 600
    reconciler_archiving_timeout: Seconds = 1800
    reconciler_restoring_timeout: Seconds = 1800

    activity_flush_interval: Seconds = 30
    gateway_lost_after_seconds: WholeSeconds = 3600
    ttl_standby_seconds: WholeSeconds = 600
    ttl_archive_seconds: WholeSeconds = 1800
    awake_cpu_percent: Annotated[int, Field(ge=0, le=MOST_AWAKE_CPU_PERCENT)] = 0
    trash_retention_seconds: WholeSeconds = 604_800
    gc_orphan_grace_seconds: WholeSeconds = 7200
    archives_kept: Annotated[int, Field(ge=0, le=1000)] = 3
    disk_reserve_bytes: Annotated[int, Field(ge=0, le=1 << 60)] = 1 << 30
    disk_reserve_files: Annotated[int, Field(ge=0, le=1 << 40)] = 10_000
    disk_grace_seconds: WholeSeconds = 120
    home_quota_bytes: Annotated[int, Field(ge=0, le=1 << 60)] = 0
    home_quota_files: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    archives_at_once: Annotated[int, Field(ge=1, le=10_000)] = max(2, os.cpu_count() or 1)

    exec_output_bytes: Annotated[int, Field(ge=4096, le=1 << 40)] = 16 << 20
    exec_retention_seconds: Annotated[int, Field(ge=60, le=31_536_000)] = 86_400

    audit_retention_days: Annotated[int, Field(ge=0, le=36_500)] = 365
    limits_max_running_per_user: Annotated[int, Field(ge=0, le=100_000)] = 2
    limits_max_workspaces_per_user: Annotated[int, Field(ge=0, le=100_000)] = MAX_WORKSPACES_PER_USER
    limits_max_archive_bytes_per_user: Annotated[int, Field(ge=0, le=1 << 60)] = 0
    limits_max_running_global: Annotated[int, Field(ge=0, le=1_000_000)] = 100
    limits_max_awake_seconds: WholeSeconds = 259_200
    limits_max_lease_seconds: Annotated[int, Field(ge=60, le=31_536_000)] = 86_400

    redis_channel_sse_prefix: str = "codehub:sse:"
    redis_channel_wake_prefix: str = "codehub:wake:"
    """Accepted, but unused: the coordinator receives wake-ups from PostgreSQL directly."""

    admin_username: str = "admin"
    admin_password: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if 0 < self.ttl_standby_seconds < self.minimum_standby_ttl:
            raise ValueError(
                f"TTL_STANDBY_SECONDS is {self.ttl_standby_seconds}, but activity may take "
                f"{self.minimum_standby_ttl} s to arrive (twice ACTIVITY_FLUSH_INTERVAL and "
                "COORDINATOR_TTL_INTERVAL together): raise it, set it to 0 (never), or "
                "shorten those intervals"
            )
        if self.gateway_lost_after_seconds < 4 * self.activity_flush_interval:
            raise ValueError(
                f"GATEWAY_LOST_AFTER_SECONDS is {self.gateway_lost_after_seconds}: it must be at least four "
                "times ACTIVITY_FLUSH_INTERVAL, or running gateways count as lost"
            )
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("TLS_CERT_FILE and TLS_KEY_FILE belong together: set both, or none")
        if bool(self.archive_read_access_key_id) != bool(self.archive_read_secret_access_key):
            raise ValueError(
                "ARCHIVE_READ_ACCESS_KEY_ID and ARCHIVE_READ_SECRET_ACCESS_KEY belong together: set both, or "
                "none"
            )
        if self.speaks_tls and not self.base_url.startswith("https://"):
            raise ValueError(
                f"PUBLIC_BASE_URL is {self.base_url}, but with TLS_CERT_FILE the port speaks https: "
                "correct it, or unset it"
            )
        if not is_loopback(self.public_host) and self.apps_domain is None:
            raise ValueError(
                f"PUBLIC_BASE_URL is {self.base_url}, which is not loopback: set APPS_DOMAIN to a wildcard "
                "domain for the workspaces' own origins, or to empty for the path mode (trusted users only)"
            )
        if self.insecure_http and not self.allow_insecure_http:
            raise ValueError(
                f"{self.insecure_http_message}. Serve https (TLS_CERT_FILE, or a proxy that ends TLS), or "
                "accept this with ALLOW_INSECURE_HTTP=1"
            )
        return self

    @property
    def insecure_http(self) -> bool:
        """Whether CodeHub or workspaces are reached by plain http on a name that is not loopback."""
        return self.base_url.startswith("http://") and not (
            is_loopback(self.public_host) and self._apps_are_on_loopback
        )

    @property
    def _apps_are_on_loopback(self) -> bool:
        return is_loopback(urlsplit(f"//{self.apps_host}").hostname or self.public_host)

    @property
    def insecure_http_message(self) -> str:
        address = f"PUBLIC_BASE_URL is {self.base_url}"
        if is_loopback(self.public_host):
            address = f"APPS_DOMAIN is {self.apps_host}"
        return (
            f"{address}, without https: anyone on the network can read passwords "
            "and take over sessions, and a page in one workspace can set cookies for CodeHub and for other "
            "workspaces"
        )

    @property
    def minimum_standby_ttl(self) -> int:
        return int(2 * (self.activity_flush_interval + self.coordinator_ttl_interval))

    @property
    def speaks_tls(self) -> bool:
        """Whether the public port speaks TLS, as opposed to a proxy in front of it."""
        return self.tls_cert_file is not None

    @cached_property
    def base_url(self) -> str:
        scheme = "https" if self.speaks_tls else "http"
        return self.public_base_url or f"{scheme}://localhost:{self.port}"

    @cached_property
    def public_host(self) -> str:
        return urlsplit(self.base_url).hostname or "localhost"

    @cached_property
    def apps_host(self) -> str:
        """`host[:port]` below which workspaces have their origins; empty in the path mode."""
        if self.apps_domain is not None:
            return self.apps_domain
        return default_apps_domain(self.base_url)

    @property
    def weaknesses(self) -> tuple[Weakness, ...]:
        """Return the settings that weaken the default security."""
        found = {
            Weakness.PATH_MODE: not self.apps_host,
            Weakness.PLAIN_HTTP: self.insecure_http
            or (self.base_url.startswith("http://") and not is_loopback(self.host)),
            Weakness.INSECURE_PROCESS_RUNTIME: self.runtime == "process" and self.insecure_process_runtime,
            Weakness.DOCKER_FIREWALL_OFF: self.runtime == "docker" and not self.docker_firewall,
            Weakness.PRIVATE_EGRESS: bool(self.allowed_egress),
            Weakness.WIDE_TRUSTED_PROXIES: bool(self.wide_proxies),
            Weakness.NO_DISK_RESERVE: not (self.disk_reserve_bytes and self.disk_reserve_files),
            Weakness.NO_PART_WATCHDOG: not self.part_timeout_seconds,
        }
        return tuple(weakness for weakness, is_present in found.items() if is_present)

    @cached_property
    def proxies(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """Networks of proxies whose X-Forwarded-For is trusted."""
        return tuple(parse_networks(self.trusted_proxies))

    @cached_property
    def wide_proxies(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """Networks among these that also contain clients, which can then forge their address."""
        return tuple(network for network in self.proxies if is_too_wide(network))

    @property
    def wide_proxies_message(self) -> str:
        return (
            f"TRUSTED_PROXIES has {', '.join(map(str, self.wide_proxies))}, which contains clients too: "
            "they can forge the address that sign-in limits, lockouts and the audit log use"
        )

    @property
    def disk_reserve(self) -> Reserve:
        return Reserve(self.disk_reserve_bytes, self.disk_reserve_files)

    @property
    def ttl_defaults(self) -> TtlDefaults:
        return TtlDefaults(
            self.ttl_standby_seconds,
            self.ttl_archive_seconds,
            self.limits_max_awake_seconds,
            self.awake_cpu_percent,
        )

    @property
    def backends(self) -> Backends:
        return Backends(self.runtime, "local-dir")

    @cached_property
    def allowed_egress(self) -> tuple[str, ...]:
        """Networks that workspaces may reach although they are private."""
        return tuple(map(str, parse_ipv4_networks(self.workspace_allow_egress)))

    @property
    def gateway_group(self) -> int | None:
        """Group that may connect to workspaces' sockets.

        None: only the coordinator's user (ADR 0028).
        """
        return self.gateway_uid if os.geteuid() == 0 and self.gateway_uid != 0 else None

    @property
    def access_group(self) -> int | None:
        """Group of the access part, which may connect to the sockets for commands (ADR 0034).

        None: only the coordinator's user.
        """
        return self.access_uid if os.geteuid() == 0 and self.access_uid else None

    @property
    def archive_store_url(self) -> str:
        """URL of the archive store: a directory of this installation unless ARCHIVE_URL names another."""
        return self.archive_url or f"file://{self.data_dir / 'archives'}"

    @cached_property
    def run_dir(self) -> Path:
        return self.data_dir / "run"

    @cached_property
    def api_socket(self) -> Path:
        return self.run_dir / "api.sock"

    @property
    def api_listen_address(self) -> str:
        """Address where the API listens: `unix:/path` or `tcp:host:port`."""
        return self.api_listen or f"unix:{self.api_socket}"

    @property
    def api_upstream_address(self) -> str:
        """Address at which the gateway reaches the API."""
        return self.api_upstream or f"unix:{self.api_socket}"

    @cached_property
    def access_socket(self) -> Path:
        return self.run_dir / "access.sock"

    @property
    def access_listen_address(self) -> str:
        """Address where the access part listens: `unix:/path` or `tcp:host:port`."""
        return self.access_listen or f"unix:{self.access_socket}"

    @property
    def access_upstream_address(self) -> str:
        """Address at which the gateway reaches the access part."""
        return self.access_upstream or f"unix:{self.access_socket}"

    def internal_key_for(self, name: str, address: str) -> str | None:
        """Return the key for requests to this address, or None for a Unix socket.

        Raise SettingsError if the key is missing. `name` is the setting of the address.
        """
        if not address.startswith("tcp:"):
            return None
        if self.internal_key is None:
            raise SettingsError(
                f"{name} is {address}, which others may reach: set INTERNAL_KEY to a secret of at least 32 "
                "characters, the same for the API, the access part and the gateway"
            )
        return self.internal_key

    def internal_addresses(self, part: str) -> tuple[str, ...]:
        """Return the addresses where a part may serve health and metrics; it uses the first free one.

        By default there are several, for parts of one kind on one data directory.
        """
        if self.internal_listen:
            return (self.internal_listen,)
        first = f"unix:{self.run_dir.absolute() / part}-internal"
        return (f"{first}.sock", *(f"{first}-{number}.sock" for number in range(2, MAX_INTERNAL_SOCKETS + 1)))

    @cached_property
    def images_text(self) -> str | None:
        """Content of the images file; None means the built-in list."""
        if self.images_file is None:
            return None
        try:
            return self.images_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"IMAGES_FILE {self.images_file} cannot be read ({error}): correct it"
            ) from error


def load(**overrides: object) -> Settings:
    """Return the settings of this process, or raise SettingsError with one line for each error."""
    try:
        return Settings(**overrides)  # type: ignore[arg-type]
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            name = str(problem["loc"][-1]).upper() if problem["loc"] else ""
            message = problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
            given = "" if name in SECRETS else f" (it is {problem['input']!r})"
            lines.append(f"{name}: {message}{given}" if name else message)
        raise SettingsError("\n".join(lines)) from error
