"""What a workspace may reach, as rules of its network namespace."""

from __future__ import annotations

from socket import IPPROTO_TCP, IPPROTO_UDP

from codehub.runtimes.egress import DENIED, Egress, rules
from codehub.runtimes.process.netlink import Rule, own_networks

OWN = ["127.0.0.0/8", "127.0.0.1/32", "192.0.2.2/32"]


def test_the_resolver_is_asked_for_names_and_nothing_else() -> None:
    """Whatever its other ports are would be the host's name server's, which may be the host itself."""
    found = [rule for rule in rules(Egress(8080), OWN, "198.19.255.3") if rule.network == "198.19.255.3"]
    assert found == [
        Rule("198.19.255.3", True, IPPROTO_UDP, 53),
        Rule("198.19.255.3", True, IPPROTO_TCP, 53),
    ]


def test_of_this_machine_only_codehubs_port_is_allowed() -> None:
    found = [rule for rule in rules(Egress(8080), OWN, "r") if rule.network == "192.0.2.2/32"]
    assert found == [Rule("192.0.2.2/32", True, IPPROTO_TCP, 8080), Rule("192.0.2.2/32", False)]


def test_loopback_is_left_to_the_workspaces_own() -> None:
    assert not any(rule.network.startswith("127.") and rule.allowed for rule in rules(Egress(1), OWN, "r"))


def test_what_is_allowed_comes_before_what_is_denied() -> None:
    found = rules(Egress(8080, allowed=("10.1.0.0/16",)), OWN, "r")
    assert found.index(Rule("10.1.0.0/16", True)) < found.index(Rule("10.0.0.0/8", False))
    assert {rule.network for rule in found if not rule.allowed} >= set(DENIED)
    verdicts = [rule.allowed for rule in found]
    assert verdicts == sorted(verdicts, reverse=True)


def test_this_machines_own_networks_are_found() -> None:
    assert {"127.0.0.0/8", "127.0.0.1/32"} <= set(own_networks())
