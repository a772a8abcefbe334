"""Types of settings: Pydantic annotations that check one value each."""

import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

_ADDRESS: Final = re.compile(r"unix:/.+|tcp:(?:\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(?P<port>\d{1,5})")
_INTERNAL_KEY: Final = re.compile(r"[!-~]{32,}")


def parse_ipv4_networks(value: str) -> list[IPv4Network]:
    """Return the networks of a comma-separated list. An address is a network of one."""
    return [IPv4Network(part.strip()) for part in value.split(",") if part.strip()]


def parse_networks(value: str) -> list[IPv4Network | IPv6Network]:
    """Return the networks of a comma-separated list. An address is a network of one."""
    return [ip_network(part.strip()) for part in value.split(",") if part.strip()]


def _check_database_url(value: str) -> str:
    try:
        is_postgresql = not value or make_url(value).get_backend_name() in ("postgresql", "postgres")
    except (ArgumentError, ValueError):
        is_postgresql = False
    if not is_postgresql:
        raise ValueError("must be a URL such as postgresql://user:password@host/database")
    return value


def _check_redis_url(value: str) -> str:
    if value and not _has_scheme(value, "redis", "rediss", "unix"):
        raise ValueError("must be a URL such as redis://host:6379/0 or unix:///path")
    return value


def _check_archive_url(value: str) -> str:
    if value and not _has_scheme(value, "file", "s3"):
        raise ValueError("must be a URL such as file:///directory or s3://bucket/prefix")
    return value


def _has_scheme(value: str, *schemes: str) -> bool:
    try:
        parts = urlsplit(value)
        return parts.scheme in schemes and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def _parse_network_pool(value: object) -> IPv4Network:
    try:
        network = IPv4Network(str(value))
    except ValueError:
        network = None
    if network is None or network.prefixlen > 24:
        raise ValueError("must be a network of 256 addresses or more, such as 10.222.0.0/16")
    return network


def _check_ipv4_networks(value: str) -> str:
    try:
        parse_ipv4_networks(value)
    except ValueError as error:
        raise ValueError(f"must be networks such as 10.1.2.0/24, 192.168.0.7/32 ({error})") from error
    return value


def _check_networks(value: str) -> str:
    try:
        parse_networks(value)
    except ValueError as error:
        raise ValueError(
            f"must be addresses or networks such as 192.168.0.7, 10.0.0.0/8, fd00::/8 ({error})"
        ) from error
    return value


def _check_socket_address(value: str) -> str:
    found = _ADDRESS.fullmatch(value)
    if value and (found is None or (found["port"] and not 0 < int(found["port"]) < 1 << 16)):
        raise ValueError("must be unix:/path or tcp:host:port")
    return value


def _check_internal_key(value: str | None) -> str | None:
    if value and not _INTERNAL_KEY.fullmatch(value):
        raise ValueError("must have at least 32 characters, all of them visible ASCII characters")
    return value or None


def _check_origin(value: str) -> str:
    if not value:
        return value
    parts = urlsplit(value)
    has_path = parts.path.strip("/") or parts.query
    if parts.scheme not in ("http", "https") or not parts.hostname or has_path:
        raise ValueError("must be an origin such as https://codehub.example.com, without a path")
    return f"{parts.scheme}://{parts.netloc}"


def _check_domain(value: str | None) -> str | None:
    if value and ("/" in value or value.startswith((".", "*"))):
        raise ValueError("must be a bare domain such as apps.example.com, or empty for the path mode")
    return value


Seconds = Annotated[float, Field(gt=0, le=31_536_000, allow_inf_nan=False)]
WholeSeconds = Annotated[int, Field(ge=0, le=31_536_000)]
UserId = Annotated[int, Field(ge=0, lt=(1 << 32) - 1)]
DatabaseUrl = Annotated[str, AfterValidator(_check_database_url)]
RedisUrl = Annotated[str, AfterValidator(_check_redis_url)]
ArchiveUrl = Annotated[str, AfterValidator(_check_archive_url)]
NetworkPool = Annotated[IPv4Network, BeforeValidator(_parse_network_pool)]
Ipv4Networks = Annotated[str, AfterValidator(_check_ipv4_networks)]
Networks = Annotated[str, AfterValidator(_check_networks)]
SocketAddress = Annotated[str, AfterValidator(_check_socket_address)]
InternalKey = Annotated[str | None, AfterValidator(_check_internal_key)]
Origin = Annotated[str, AfterValidator(_check_origin)]
Domain = Annotated[str | None, AfterValidator(_check_domain)]
OptionalPath = Annotated[Path | None, BeforeValidator(lambda value: value or None)]
"""Path, or None if the variable is unset or empty."""
