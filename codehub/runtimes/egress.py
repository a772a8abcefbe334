"""What a workspace may reach, on any runtime: the internet, not this machine and its neighbours."""

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
"""Private, link-local (a cloud's metadata service is there), shared, loopback, multicast and reserved; and
Azure's service for its machines, whose address is a public one."""

_NAMES = 53


@dataclass(frozen=True)
class Egress:
    """What is allowed nevertheless: CodeHub's own port on this host, name servers, chosen ranges.

    A range opens what is around this machine; the machine itself and its workspaces open by their own name.
    """

    public_port: int
    allowed: tuple[str, ...] = ()
    nameservers: tuple[str, ...] = ()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of what is allowed, the single addresses."""
        return tuple(network for network in self.allowed if network.endswith("/32"))


DEFAULT_EGRESS = Egress(public_port=8080)


def host_nameservers(resolv_conf: Path = Path("/etc/resolv.conf")) -> tuple[str, ...]:
    """The engine's resolver asks these from within the workspace's network."""
    try:
        lines = resolv_conf.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return ()
    words = [line.split() for line in lines]
    named = [word[1] for word in words if len(word) > 1 and word[0] == "nameserver"]
    return tuple(name for name in named if _is_plain_ipv4(name))


def _is_plain_ipv4(text: str) -> bool:
    try:
        return not ipaddress.IPv4Address(text).is_loopback
    except ValueError:
        return False


def rules(egress: Egress, own: Sequence[str], resolver: str) -> list[Rule]:
    """For a namespace whose way out ends on this machine: `own` is what the machine takes for itself.

    The resolver stands for the host's name servers, whatever their address; its other ports would be theirs.
    """
    own = [network for network in own if not network.startswith("127.")]  # inside, that is its own loopback
    ways = [Rule(resolver, True, kind, _NAMES) for kind in (socket.IPPROTO_UDP, socket.IPPROTO_TCP)]
    ways += [Rule(network, True, socket.IPPROTO_TCP, egress.public_port) for network in own]
    ways += [Rule(network, True) for network in egress.addresses]
    ways += [Rule(network, False) for network in own if network not in egress.allowed]
    ways += [Rule(network, True) for network in egress.allowed]
    return [*ways, *(Rule(network, False) for network in DENIED_NETWORKS)]
