"""A network of its own for each workspace, from explicit small subnets.

The engine's default pools run out at about thirty networks, and would hand out ranges that nobody chose.
"""

from __future__ import annotations

import hashlib
import ipaddress
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from codehub.domain.states import ErrorReason
from codehub.runtimes.base import RuntimeFailure
from codehub.runtimes.docker_engine import Engine, Network, Refused
from codehub.runtimes.docker_spec import Label, name_of

SUBNET_PREFIX = 29
_COLLISIONS = 50
_LONGEST_INTERFACE_NAME = 15


@dataclass(frozen=True)
class Place:
    """A workspace's subnet; the host has its first address, the container the second."""

    subnet: ipaddress.IPv4Network

    @property
    def gateway(self) -> str:
        return str(self.subnet[1])

    @property
    def address(self) -> str:
        return str(self.subnet[2])


def interface_prefix(installation_id: str) -> str:
    """What the names of all bridges of one installation begin with: the firewall knows them by it."""
    return f"ch{_digest(installation_id)[:4]}"


def interface_name(installation_id: str, workspace_id: str) -> str:
    name = interface_prefix(installation_id) + _digest(workspace_id)
    return name[:_LONGEST_INTERFACE_NAME]


def free_subnets(
    pool: ipaddress.IPv4Network, used: Iterable[str], workspace_id: str
) -> Iterator[ipaddress.IPv4Network]:
    """Subnets of the pool that no network has, beginning at a place of the workspace's own."""
    networks = [ipaddress.IPv4Network(subnet, strict=False) for subnet in used]
    taken = [network for network in networks if network.overlaps(pool)]
    same_size = {int(network.network_address) for network in taken if network.prefixlen == SUBNET_PREFIX}
    ranges = [
        (int(network.network_address), int(network.broadcast_address))
        for network in taken
        if network.prefixlen != SUBNET_PREFIX
    ]
    size = 1 << (32 - SUBNET_PREFIX)
    count = pool.num_addresses // size
    first = int(_digest(workspace_id), 16) % count
    for index in itertools.chain(range(first, count), range(first)):
        address = int(pool.network_address) + index * size
        if address in same_size or any(low < address + size and address <= high for low, high in ranges):
            continue
        yield ipaddress.IPv4Network((address, SUBNET_PREFIX))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class Networks:
    def __init__(self, engine: Engine, installation_id: str, pool: ipaddress.IPv4Network) -> None:
        self._engine = engine
        self._installation_id = installation_id
        self._pool = pool
        self._being_made: set[str] = set()

    async def ensure(self, workspace_id: str) -> Place:
        """The workspace's network, made where it is missing."""
        networks = await self._engine.networks(ours=False)
        for network in networks:
            if network.name == name_of(workspace_id) and network.workspace_id == workspace_id:
                return Place(ipaddress.IPv4Network(network.subnets[0]))
        used = [subnet for network in networks for subnet in network.subnets if ":" not in subnet]
        for subnet in itertools.islice(free_subnets(self._pool, used, workspace_id), _COLLISIONS):
            if str(subnet) not in self._being_made and await self._make(workspace_id, Place(subnet)):
                return Place(subnet)
        raise RuntimeFailure(
            ErrorReason.ActionFailed,
            f"no subnet of DOCKER_NETWORK_POOL ({self._pool}) is free: give it a larger or another range",
        )

    async def _make(self, workspace_id: str, place: Place) -> bool:
        """False when something that the list did not show has this range."""
        self._being_made.add(str(place.subnet))
        try:
            await self._engine.create_network(self._config(workspace_id, place))
        except Refused as refusal:
            if "overlap" in refusal.message.lower():
                return False
            raise
        finally:
            self._being_made.discard(str(place.subnet))
        return True

    def _config(self, workspace_id: str, place: Place) -> dict[str, Any]:
        return {
            "Name": name_of(workspace_id),
            "CheckDuplicate": True,
            "Driver": "bridge",
            "EnableIPv6": False,
            "IPAM": {"Config": [{"Subnet": str(place.subnet), "Gateway": place.gateway}]},
            "Options": {
                "com.docker.network.bridge.name": interface_name(self._installation_id, workspace_id),
                # Nothing is published; whoever publishes by hand does not open it to the world.
                "com.docker.network.bridge.host_binding_ipv4": "127.0.0.1",
            },
            "Labels": {Label.INSTALLATION: self._installation_id, Label.WORKSPACE: workspace_id},
        }

    async def remove(self, workspace_id: str) -> None:
        for network in await self._engine.networks(ours=True):
            if network.workspace_id == workspace_id:
                await self._remove(network)

    async def remove_unused(self, is_in_use: Callable[[str], bool]) -> None:
        """Networks whose container went without us, by `docker rm`."""
        for network in await self._engine.networks(ours=True):
            if network.workspace_id is not None and not is_in_use(network.workspace_id):
                await self._remove(network)

    async def _remove(self, network: Network) -> None:
        try:
            await self._engine.remove_network(network.id)
        except Refused as refusal:
            # It holds nothing but an address: `remove_unused` takes it once the container has let go.
            if "active endpoints" not in refusal.message:
                raise
