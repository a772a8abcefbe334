"""Settings that give up some of the security that CodeHub has by default."""

from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network
from typing import Final


class Weakness(StrEnum):
    """Weak setting. The audit log and the dashboard's texts contain these names."""

    PATH_MODE = "path_mode"
    PLAIN_HTTP = "plain_http"
    INSECURE_PROCESS_RUNTIME = "insecure_process_runtime"
    DOCKER_FIREWALL_OFF = "docker_firewall_off"
    PRIVATE_EGRESS = "private_egress"
    WIDE_TRUSTED_PROXIES = "wide_trusted_proxies"
    API_AS_ROOT = "api_as_root"
    ACCESS_AS_ROOT = "access_as_root"
    GATEWAY_AS_ROOT = "gateway_as_root"
    UNCONFINED_IMAGE = "unconfined_image"
    NO_DISK_RESERVE = "no_disk_reserve"
    NO_PART_WATCHDOG = "no_part_watchdog"


WEAKNESSES_OF_PART: Final = {
    "api": frozenset((Weakness.API_AS_ROOT,)),
    "access": frozenset((Weakness.ACCESS_AS_ROOT,)),
    "gateway": frozenset(
        (
            Weakness.PATH_MODE,
            Weakness.PLAIN_HTTP,
            Weakness.WIDE_TRUSTED_PROXIES,
            Weakness.GATEWAY_AS_ROOT,
            Weakness.NO_PART_WATCHDOG,
        )
    ),
    "coordinator": frozenset(
        (
            Weakness.INSECURE_PROCESS_RUNTIME,
            Weakness.DOCKER_FIREWALL_OFF,
            Weakness.PRIVATE_EGRESS,
            Weakness.UNCONFINED_IMAGE,
            Weakness.NO_DISK_RESERVE,
        )
    ),
}
"""Settings that each part reads. They may be missing from the environment of other parts."""

SHORTEST_PREFIX: Final = {4: 8, 6: 32}
"""Shortest prefix of a trusted network. A wider network contains the machines of clients."""
_PRIVATE_V6: Final = IPv6Network("fc00::/7")
_MAPPED_V4: Final = IPv6Network("::ffff:0:0/96")


def is_too_wide(network: IPv4Network | IPv6Network) -> bool:
    """Return whether a network of trusted proxies is so wide that it contains clients."""
    if network.version == 4:
        return network.prefixlen < SHORTEST_PREFIX[4]
    if network.subnet_of(_MAPPED_V4):
        return network.prefixlen < _MAPPED_V4.prefixlen + SHORTEST_PREFIX[4]
    return network.prefixlen < SHORTEST_PREFIX[6] and not network.subnet_of(_PRIVATE_V6)
