"""Network egress of workspaces: the internet, but not this machine or its networks.

ADR 0010 (Docker) and ADR 0011 (processes) say how the rules are enforced.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from codehub.runtimes.process.netlink import Rule

DENIED_NETWORKS = (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
    "192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4", "168.63.129.16/32",
)  # fmt: skip
"""Private, link-local (which has a cloud's metadata service), shared, loopback, multicast and
reserved networks, and Azure's service for its machines, which has a public address."""

_DNS_PORT = 53


@dataclass(frozen=True)
class Egress:
    """Allowed egress besides the internet: CodeHub's own port, name servers, configured ranges.

    A range opens neither this machine's addresses nor workspaces; each of those needs a separate
    entry.
    """

    public_port: int
    allowed: tuple[str, ...] = ()
    nameservers: tuple[str, ...] = ()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the allowed entries that are single addresses."""
        return tuple(network for network in self.allowed if network.endswith("/32"))


DEFAULT_EGRESS = Egress(public_port=8080)


def host_nameservers(resolv_conf: Path = Path("/etc/resolv.conf")) -> tuple[str, ...]:
    """Return the name servers that Docker's resolver queries from within a workspace's network."""
    try:
        lines = resolv_conf.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return ()
    fields = [line.split() for line in lines]
    servers = [field[1] for field in fields if len(field) > 1 and field[0] == "nameserver"]
    return tuple(server for server in servers if _is_plain_ipv4(server))


def _is_plain_ipv4(text: str) -> bool:
    try:
        return not ipaddress.IPv4Address(text).is_loopback
    except ValueError:
        return False


def routing_rules(egress: Egress, own: Sequence[str], resolver: str) -> list[Rule]:
    """Return the rules for a network namespace whose uplink ends on this machine.

    `own` are the networks of the machine itself. The resolver forwards to the host's name servers;
    its other ports would be theirs, so only DNS is allowed.
    """
    own = [
        network for network in own if not network.startswith("127.")
    ]  # inside, this is the loopback of the namespace
    rules = [Rule(resolver, True, kind, _DNS_PORT) for kind in (socket.IPPROTO_UDP, socket.IPPROTO_TCP)]
    rules += [Rule(network, True, socket.IPPROTO_TCP, egress.public_port) for network in own]
    rules += [Rule(network, True) for network in egress.addresses]
    rules += [Rule(network, False) for network in own if network not in egress.allowed]
    rules += [Rule(network, True) for network in egress.allowed]
    return [*rules, *(Rule(network, False) for network in DENIED_NETWORKS)]
