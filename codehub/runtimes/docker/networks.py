"""Networks of containers: one each, from small explicit subnets (ADR 0010).

The engine's default pools run out at about thirty networks, and use ranges that the administrator
did not choose.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import itertools
import random
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codehub.domain.states import ErrorReason
from codehub.runtimes.base import RuntimeFailure
from codehub.runtimes.docker.container_config import Label
from codehub.runtimes.docker.engine import Engine, EngineRefusal, NetworkSummary

SUBNET_PREFIX = 29
SPARES = 4
_COLLISIONS = 50
_LONGEST_INTERFACE_NAME = 15


@dataclass(frozen=True)
class Subnet:
    """A subnet and the names of its network.

    The host has the first address, the container the second.
    """

    cidr: ipaddress.IPv4Network
    installation_id: str

    @property
    def name(self) -> str:
        return f"codehub-{self.interface}"

    @property
    def interface(self) -> str:
        """The name of the bridge, whose length the kernel limits."""
        name = interface_prefix(self.installation_id) + _digest(str(self.cidr))
        return name[:_LONGEST_INTERFACE_NAME]

    @property
    def gateway(self) -> str:
        return str(self.cidr[1])

    @property
    def address(self) -> str:
        return str(self.cidr[2])


def interface_prefix(installation_id: str) -> str:
    """Return the prefix of all bridges of one installation, by which the firewall matches them."""
    return f"ch{_digest(installation_id)[:4]}"


def free_subnets(
    pool: ipaddress.IPv4Network, used: Iterable[str], after: ipaddress.IPv4Network | None = None
) -> Iterator[ipaddress.IPv4Network]:
    """Yield each unused subnet of the pool once.

    The first is the one after `after`, or a random one.
    """
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
    first = random.randrange(count) if after is None else _index(after, pool) + 1  # noqa: S311 - no secret
    for index in range(first, first + count):
        address = int(pool.network_address) + index % count * size
        if address in same_size or any(low < address + size and address <= high for low, high in ranges):
            continue
        yield ipaddress.IPv4Network((address, SUBNET_PREFIX))


def _index(subnet: ipaddress.IPv4Network, pool: ipaddress.IPv4Network) -> int:
    return (int(subnet.network_address) - int(pool.network_address)) >> (32 - SUBNET_PREFIX)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class NetworkPool:
    """Pool of networks. A few are kept ready, because creating one is the longest step of a start.

    The engine knows which are in use. Two workspaces never share one, even after an error here:
    both would need its second address, which the engine assigns only once. Subnets are reused as
    late as possible, because clients may still know a workspace by an old address. So the last
    subnet is stored in a file.
    """

    def __init__(
        self, engine: Engine, installation_id: str, pool: ipaddress.IPv4Network, last_subnet_file: Path
    ) -> None:
        self._engine = engine
        self._installation_id = installation_id
        self._pool = pool
        self._last_subnet_file = last_subnet_file
        self._spares: list[Subnet] = []
        self._reserved: set[str] = set()
        self._recently_reserved: set[str] = set()
        self._being_created: set[str] = set()
        self.needs_spares = asyncio.Event()
        """Set when fewer than `SPARES` are ready."""

    @asynccontextmanager
    async def reserve(self) -> AsyncIterator[Subnet]:
        """Reserve an unused network, for a container that is created within the context."""
        while self._spares:
            self.needs_spares.set()
            with self._hold(self._spares.pop()) as subnet:
                if await self._engine.is_unused_network(subnet.name):
                    yield subnet
                    return
        with self._hold(await self._create()) as subnet:
            yield subnet

    @contextmanager
    def _hold(self, subnet: Subnet) -> Iterator[Subnet]:
        self._reserved.add(subnet.name)
        self._recently_reserved.add(subnet.name)
        try:
            yield subnet
        finally:
            self._reserved.discard(subnet.name)

    async def _create(self) -> Subnet:
        networks = await self._engine.networks()
        used = [cidr for network in networks for cidr in network.subnets if ":" not in cidr]
        for cidr in itertools.islice(free_subnets(self._pool, used, self._read_last()), _COLLISIONS):
            subnet = Subnet(cidr, self._installation_id)
            if subnet.name not in self._being_created and await self._try_create(subnet):
                return subnet
        raise RuntimeFailure(
            ErrorReason.ActionFailed,
            f"no subnet of DOCKER_NETWORK_POOL ({self._pool}) is free: set it to a larger or another range",
        )

    async def _try_create(self, subnet: Subnet) -> bool:
        """Create the network, or return False if its range turns out to be in use."""
        self._being_created.add(subnet.name)
        self._store_last(subnet.cidr)
        try:
            await self._engine.create_network(self._config(subnet))
        except EngineRefusal as refusal:
            if "overlap" in refusal.message.lower() or "already exists" in refusal.message.lower():
                return False
            raise
        finally:
            self._being_created.discard(subnet.name)
        return True

    def _read_last(self) -> ipaddress.IPv4Network | None:
        try:
            return ipaddress.IPv4Network(self._last_subnet_file.read_text())
        except (OSError, ValueError):
            return None

    def _store_last(self, cidr: ipaddress.IPv4Network) -> None:
        with contextlib.suppress(OSError):  # a full disk is reported elsewhere
            self._last_subnet_file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._last_subnet_file.write_text(str(cidr))

    def _config(self, subnet: Subnet) -> dict[str, Any]:
        return {
            "Name": subnet.name,
            "CheckDuplicate": True,
            "Driver": "bridge",
            "EnableIPv6": False,
            "IPAM": {"Config": [{"Subnet": str(subnet.cidr), "Gateway": subnet.gateway}]},
            "Options": {
                "com.docker.network.bridge.name": subnet.interface,
                # CodeHub publishes no ports. Ports that are published by hand stay on loopback.
                "com.docker.network.bridge.host_binding_ipv4": "127.0.0.1",
            },
            "Labels": {Label.INSTALLATION: self._installation_id},
        }

    async def remove(self, name: str) -> None:
        try:
            await self._engine.remove_network(name)
        except EngineRefusal as refusal:
            # `clean_up` removes it once the container is gone.
            if "active endpoints" not in refusal.message:
                raise

    async def clean_up(self, spares: int = SPARES) -> None:
        """Keep some networks ready, and remove other unused ones, such as after `docker rm`."""
        self.needs_spares.clear()
        self._recently_reserved = set(self._reserved)
        used = {found.network for found in await self._engine.containers()}
        ours = [network for network in await self._engine.networks() if network.is_ours]
        kept = used | self._recently_reserved | self._being_created
        unused = [network for network in ours if network.name not in kept]
        self._spares = [self._subnet_of(network) for network in unused[:spares]]
        for network in unused[spares:]:
            await self.remove(network.name)
        while len(self._spares) < spares:
            self._spares.append(await self._create())

    def _subnet_of(self, network: NetworkSummary) -> Subnet:
        return Subnet(ipaddress.IPv4Network(network.subnets[0]), self._installation_id)
