"""Ports of a workspace: where the gateway finds what listens on one, derived from where it finds the IDE."""

from __future__ import annotations

import re
from ipaddress import ip_address

PORT_BROKER_SOCKET = "net.sock"
"""Beside the IDE's own socket: who connects is handed sockets that lie in the workspace's network."""
HIGHEST_PORT = 65535
_PLAIN_DECIMAL = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)


def parse_port(text: str) -> int | None:
    """The port, written in the one way in which it may be written."""
    if not _PLAIN_DECIMAL.fullmatch(text):
        return None
    port = int(text)
    return port if port <= HIGHEST_PORT else None


def port_address(upstream: str, port: int) -> str | None:
    """`tcp:ip:port` or `door:/path:port`; None when the IDE is where the host's own ports are."""
    network = network_of(upstream)
    return None if network is None else f"{network}{port}"


def network_of(upstream: str) -> str | None:
    """What the addresses of all ports of one workspace begin with."""
    kind, _, where = upstream.partition(":")
    if kind == "unix" and "/" in where:
        return f"door:{where.rpartition('/')[0]}/{PORT_BROKER_SOCKET}:"
    host, separator, _ = where.rpartition(":")
    if kind == "tcp" and separator and _is_a_machine_of_its_own(host):
        return f"tcp:{host}:"
    return None


def _is_a_machine_of_its_own(host: str) -> bool:
    """Whether this is an address, and not one by which the gateway would reach its own host."""
    try:
        address = ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return not (mapped.is_loopback or mapped.is_unspecified)
