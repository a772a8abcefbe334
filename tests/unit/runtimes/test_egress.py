"""The routing rules of a workspace's network namespace."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from socket import IPPROTO_TCP, IPPROTO_UDP

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codehub.runtimes.egress import DENIED_NETWORKS, Egress, routing_rules
from codehub.runtimes.process.netlink import Rule, own_networks

OWN = ["127.0.0.0/8", "127.0.0.1/32", "192.0.2.2/32"]


def may_reach(allowed: tuple[str, ...], own: list[str], host: str) -> bool:
    """Return whether a port other than CodeHub's can be reached, by the first rule that matches."""
    for rule in routing_rules(Egress(8080, allowed), own, "198.19.255.3"):
        if rule.port is None and IPv4Address(host) in IPv4Network(rule.network):
            return rule.allowed
    return True


def test_the_resolver_can_be_reached_only_for_dns() -> None:
    """Its other ports would be those of the name server, which may be the host itself."""
    found = [
        rule for rule in routing_rules(Egress(8080), OWN, "198.19.255.3") if rule.network == "198.19.255.3"
    ]
    assert found == [
        Rule("198.19.255.3", True, IPPROTO_UDP, 53),
        Rule("198.19.255.3", True, IPPROTO_TCP, 53),
    ]


def test_only_codehubs_port_of_this_machine_is_allowed() -> None:
    found = [rule for rule in routing_rules(Egress(8080), OWN, "r") if rule.network == "192.0.2.2/32"]
    assert found == [Rule("192.0.2.2/32", True, IPPROTO_TCP, 8080), Rule("192.0.2.2/32", False)]


def test_no_rule_allows_loopback() -> None:
    assert not any(
        rule.network.startswith("127.") and rule.allowed for rule in routing_rules(Egress(1), OWN, "r")
    )


def test_allow_rules_precede_deny_rules() -> None:
    found = routing_rules(Egress(8080, allowed=("10.1.0.0/16",)), OWN, "r")
    assert found.index(Rule("10.1.0.0/16", True)) < found.index(Rule("10.0.0.0/8", False))
    assert {rule.network for rule in found if not rule.allowed} >= set(DENIED_NETWORKS)


@pytest.mark.parametrize(
    "service",
    [
        "169.254.169.254",  # nearly everybody's
        "169.254.170.2",  # Amazon's for containers
        "168.63.129.16",  # Azure's WireServer
        "100.100.100.200",  # Alibaba's
        "192.0.0.192",  # Oracle's first one
    ],
)
def test_a_clouds_service_for_its_machines_cannot_be_reached(service: str) -> None:
    assert not may_reach((), OWN, service)
    assert may_reach((f"{service}/32",), OWN, service)


@given(st.integers(0, 31), st.integers(1, 254))
def test_a_range_does_not_open_this_machines_addresses_in_it(length: int, last: int) -> None:
    own, around = f"10.1.2.{last}", str(IPv4Network((f"10.1.2.{last}", length), strict=False))
    assert not may_reach((around,), [f"{own}/32"], own)
    neighbour = str(IPv4Address(int(IPv4Address(own)) ^ 1))
    assert may_reach((around,), [f"{own}/32"], neighbour)
    assert may_reach((around, f"{own}/32"), [f"{own}/32"], own)


@pytest.mark.parametrize(("allowed", "expected"), [("10.9.0.0/24", True), ("10.9.0.0/16", False)])
def test_a_network_that_is_this_machines_own_is_opened_by_its_name(allowed: str, expected: bool) -> None:
    assert may_reach((allowed,), ["10.9.0.0/24"], "10.9.0.7") is expected


def test_this_machines_own_networks_are_found() -> None:
    assert {"127.0.0.0/8", "127.0.0.1/32"} <= set(own_networks())
