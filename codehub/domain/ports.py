"""Addresses of the ports of a workspace, derived from the address of its IDE (ADR 0013)."""

from __future__ import annotations

import re
from ipaddress import ip_address

PORT_BROKER_SOCKET = "net.sock"
"""Socket of the port broker, beside the IDE's. It hands out sockets of the workspace's network."""
HIGHEST_PORT = 65535
_PLAIN_DECIMAL = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)


def parse_port(text: str) -> int | None:
    """Return the port, or None unless it is written in its canonical form."""
    if not _PLAIN_DECIMAL.fullmatch(text):
        return None
    port = int(text)
    return port if port <= HIGHEST_PORT else None


def port_address(upstream: str, port: int) -> str | None:
    """Return `tcp:ip:port` or `broker:/path:port`; None if the IDE shares the host's network."""
    network = network_of(upstream)
    return None if network is None else f"{network}{port}"


def network_of(upstream: str) -> str | None:
    """Return the common prefix of the addresses of a workspace's ports."""
    kind, _, where = upstream.partition(":")
    if kind == "unix" and "/" in where:
        return f"broker:{where.rpartition('/')[0]}/{PORT_BROKER_SOCKET}:"
    host, separator, _ = where.rpartition(":")
    if kind == "tcp" and separator and _is_other_machine(host):
        return f"tcp:{host}:"
    return None


def _is_other_machine(host: str) -> bool:
    """Return whether this is an address, and not one of the gateway's own host."""
    try:
        address = ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return not (mapped.is_loopback or mapped.is_unspecified)
