"""A network of its own for each container, from explicit small subnets.

The engine's default pools run out at about thirty networks, and would hand out ranges that nobody chose.
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
    """A network with its subnet; the host has its first address, the container the second."""

    subnet: ipaddress.IPv4Network
    installation_id: str

    @property
    def name(self) -> str:
        return f"codehub-{self.interface}"

    @property
    def interface(self) -> str:
        """The bridge's name, which the kernel bounds."""
        name = interface_prefix(self.installation_id) + _digest(str(self.subnet))
        return name[:_LONGEST_INTERFACE_NAME]

    @property
    def gateway(self) -> str:
        return str(self.subnet[1])

    @property
    def address(self) -> str:
        return str(self.subnet[2])


def interface_prefix(installation_id: str) -> str:
    """What the names of all bridges of one installation begin with: the firewall knows them by it."""
    return f"ch{_digest(installation_id)[:4]}"


def free_subnets(
    pool: ipaddress.IPv4Network, used: Iterable[str], after: ipaddress.IPv4Network | None = None
) -> Iterator[ipaddress.IPv4Network]:
    """Subnets of the pool that no network has: once around it, after a given one or from anywhere on."""
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
    """To make one is the longest step before a container starts, so a few are kept ready.

    Which are in use, the engine knows. Two workspaces never share one, whatever goes wrong here: both would
    want its second address, which the engine gives only once. One that was given back is the last to be given
    out again, for somebody may still know a workspace by it; so the last one is noted, beyond a restart.
    """

    def __init__(self, engine: Engine, installation_id: str, pool: ipaddress.IPv4Network, note: Path) -> None:
        self._engine = engine
        self._installation_id = installation_id
        self._pool = pool
        self._note = note
        self._spares: list[Subnet] = []
        self._in_hand: set[str] = set()
        self._lately_in_hand: set[str] = set()
        self._being_created: set[str] = set()
        self.wanting = asyncio.Event()
        """Set when fewer than usual are ready."""

    @asynccontextmanager
    async def take(self) -> AsyncIterator[Subnet]:
        """A network that nobody is in, for a container that is made before this ends."""
        while self._spares:
            self.wanting.set()
            with self._hold(self._spares.pop()) as place:
                if await self._engine.is_free_network(place.name):
                    yield place
                    return
        with self._hold(await self._make()) as place:
            yield place

    @contextmanager
    def _hold(self, place: Subnet) -> Iterator[Subnet]:
        self._in_hand.add(place.name)
        self._lately_in_hand.add(place.name)
        try:
            yield place
        finally:
            self._in_hand.discard(place.name)

    async def _make(self) -> Subnet:
        networks = await self._engine.networks()
        used = [subnet for network in networks for subnet in network.subnets if ":" not in subnet]
        for subnet in itertools.islice(free_subnets(self._pool, used, self._last()), _COLLISIONS):
            place = Subnet(subnet, self._installation_id)
            if place.name not in self._being_created and await self._try_to_make(place):
                return place
        raise RuntimeFailure(
            ErrorReason.ActionFailed,
            f"no subnet of DOCKER_NETWORK_POOL ({self._pool}) is free: give it a larger or another range",
        )

    async def _try_to_make(self, place: Subnet) -> bool:
        """False when something that the list did not show has this range."""
        self._being_created.add(place.name)
        self._remember(place.subnet)
        try:
            await self._engine.create_network(self._config(place))
        except EngineRefusal as refusal:
            if "overlap" in refusal.message.lower() or "already exists" in refusal.message.lower():
                return False
            raise
        finally:
            self._being_created.discard(place.name)
        return True

    def _last(self) -> ipaddress.IPv4Network | None:
        try:
            return ipaddress.IPv4Network(self._note.read_text())
        except (OSError, ValueError):
            return None

    def _remember(self, subnet: ipaddress.IPv4Network) -> None:
        with contextlib.suppress(OSError):  # a full disk: whatever needs it will tell
            self._note.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._note.write_text(str(subnet))

    def _config(self, place: Subnet) -> dict[str, Any]:
        return {
            "Name": place.name,
            "CheckDuplicate": True,
            "Driver": "bridge",
            "EnableIPv6": False,
            "IPAM": {"Config": [{"Subnet": str(place.subnet), "Gateway": place.gateway}]},
            "Options": {
                "com.docker.network.bridge.name": place.interface,
                # Nothing is published; whoever publishes by hand does not open it to the world.
                "com.docker.network.bridge.host_binding_ipv4": "127.0.0.1",
            },
            "Labels": {Label.INSTALLATION: self._installation_id},
        }

    async def remove(self, name: str) -> None:
        try:
            await self._engine.remove_network(name)
        except EngineRefusal as refusal:
            # It holds nothing but an address: `tidy` takes it once the container has let go.
            if "active endpoints" not in refusal.message:
                raise

    async def tidy(self, spares: int = SPARES) -> None:
        """Keep so many ready, and remove the others that no container uses (theirs went by `docker rm`)."""
        self.wanting.clear()
        self._lately_in_hand = set(self._in_hand)
        used = {found.network for found in await self._engine.containers()}
        ours = [network for network in await self._engine.networks() if network.is_ours]
        kept = used | self._lately_in_hand | self._being_created
        unused = [network for network in ours if network.name not in kept]
        self._spares = [self._place(network) for network in unused[:spares]]
        for network in unused[spares:]:
            await self.remove(network.name)
        while len(self._spares) < spares:
            self._spares.append(await self._make())

    def _place(self, network: NetworkSummary) -> Subnet:
        return Subnet(ipaddress.IPv4Network(network.subnets[0]), self._installation_id)
