"""Proxies in front of the gateway whose X-Forwarded-For names the client."""

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Final

REMEMBERED: Final = 1024


class TrustedProxies:
    """Set of addresses and networks, with a cache for the last peers: every request needs the answer."""

    def __init__(self, networks: Sequence[IPv4Network | IPv6Network] = ()) -> None:
        self._networks = networks
        self._look_up = lru_cache(REMEMBERED)(self._is_in_a_network)

    def __contains__(self, peer: str) -> bool:
        return bool(self._networks) and self._look_up(peer)

    def _is_in_a_network(self, peer: str) -> bool:
        try:
            address = ip_address(peer)
        except ValueError:
            return False
        return any(address in network for network in self._networks)
