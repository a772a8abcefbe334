"""Limits by client address: open connections, and the cost of what it sends (ADR 0024)."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from codehub.domain.audit import network_of, parse_address
from codehub.gateway.http1.turn_queue import COSTLY_A_TICK
from codehub.gateway.trusted_proxies import TrustedProxies

REMEMBERED: Final = 4096
LOOPBACK_SHARES: Final = 3
"""How many shares loopback has: an untrusted proxy on this machine may serve many users."""


class AddressShare:
    """The share of one network: an IPv4 address or an IPv6 /64."""

    __slots__ = ("connections", "costly", "key", "limit")

    def __init__(self, key: object, limit: float) -> None:
        self.key = key
        self.limit = limit
        self.connections = 0
        self.costly = 0
        """Recent costly callbacks: replies of the gateway, unfinished heads, tiny messages."""

    @property
    def is_spent(self) -> bool:
        return self.costly >= COSTLY_A_TICK

    @property
    def is_exceeded(self) -> bool:
        return self.connections > self.limit

    @property
    def is_flooded(self) -> bool:
        """Whether so many are refused that the next ones get no reply."""
        return self.connections > 2 * self.limit


class AddressShares:
    """Shares by network. Each connection of a trusted proxy has a separate share without a limit."""

    def __init__(self, limit: int, trusted: TrustedProxies) -> None:
        self._limit = limit
        self._trusted = trusted
        self._shares: dict[object, AddressShare] = {}

    def enter(self, peer: str) -> AddressShare:
        """Count a connection of this peer, and return its share."""
        if peer in self._trusted:
            share = AddressShare(object(), float("inf"))
            self._shares[share.key] = share
        else:
            client = _client_of(peer)
            share = self._shares.get(client.network) or self._add(client)
        share.connections += 1
        return share

    def _add(self, client: "_Client") -> AddressShare:
        limit = self._limit * (LOOPBACK_SHARES if client.is_loopback else 1)
        share = self._shares[client.network] = AddressShare(client.network, limit)
        return share

    def start_tick(self) -> None:
        """Halve the costs, and drop unused shares. Reconnecting does not reset a cost."""
        for share in list(self._shares.values()):
            share.costly //= 2
            if not share.connections and not share.costly:
                del self._shares[share.key]


def peer_address(name: Sequence[object] | None) -> str:
    """Return the address in a socket's peer name; an IPv4-mapped IPv6 address becomes IPv4."""
    return str(name[0]).removeprefix("::ffff:") if name else ""


class _Client(NamedTuple):
    network: str
    is_loopback: bool


@lru_cache(REMEMBERED)
def _client_of(peer: str) -> _Client:
    address = parse_address(peer)
    return _Client(network_of(peer) or peer, address is not None and address.is_loopback)
