"""Subnets of workspaces, and the rules of their firewall."""

import os
from ipaddress import IPv4Address, IPv4Network
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codehub.coordinator.main import docker_options
from codehub.runtimes.docker.firewall import chains_text
from codehub.runtimes.docker.networks import Subnet, free_subnets, interface_prefix
from codehub.runtimes.egress import DENIED_NETWORKS, Egress, host_nameservers
from codehub.settings import Settings

POOL = IPv4Network("10.222.0.0/16")
SMALL = IPv4Network("10.222.0.0/24")


def test_a_whole_pool_is_used_before_it_is_full() -> None:
    used: list[str] = []
    for _ in range(SMALL.num_addresses // 8):
        used.append(str(next(free_subnets(SMALL, used))))
    assert len(set(used)) == 32
    assert list(free_subnets(SMALL, used)) == []


@given(st.integers(0, 31), st.sets(st.integers(0, 31)))
def test_the_subnet_that_was_used_last_is_reused_last(last: int, used: set[int]) -> None:
    subnets = list(SMALL.subnets(new_prefix=29))
    found = list(free_subnets(SMALL, [str(subnets[index]) for index in used], after=subnets[last]))
    in_order = subnets[last + 1 :] + subnets[: last + 1]
    assert found == [subnet for subnet in in_order if subnets.index(subnet) not in used]


def test_a_last_subnet_of_another_pool_is_ignored() -> None:
    assert len(set(free_subnets(SMALL, [], after=IPv4Network("10.1.2.8/29")))) == 32


@given(st.lists(st.integers(0, 255), max_size=20), st.integers(16, 28))
def test_no_subnet_overlaps_another_network(thirds: list[int], prefix: int) -> None:
    used = [str(IPv4Network((f"10.222.{third}.0", prefix), strict=False)) for third in thirds]
    for subnet in islice(free_subnets(POOL, used), 5):
        assert subnet.subnet_of(POOL)
        assert not any(subnet.overlaps(IPv4Network(other)) for other in used)


def test_networks_outside_the_pool_do_not_matter() -> None:
    assert len(list(free_subnets(POOL, ["172.17.0.0/16"]))) == len(list(free_subnets(POOL, []))) == 8192


def test_the_host_is_first_and_the_container_second() -> None:
    subnet = Subnet(IPv4Network("10.222.1.8/29"), "installation")
    assert (subnet.gateway, subnet.address) == ("10.222.1.9", "10.222.1.10")


def test_the_name_of_a_bridge_fits_the_kernel_and_shows_its_installation() -> None:
    name = Subnet(IPv4Network("10.222.255.248/29"), "installation").interface
    assert len(name) == 15
    assert name.startswith(interface_prefix("installation"))
    assert interface_prefix("installation") != interface_prefix("another")


def chain(allowed: tuple[str, ...], nameservers: tuple[str, ...] = ()) -> list[str]:
    return rules_of("C", chains_text("C", str(POOL), Egress(8080, allowed, nameservers), ()))


def rules_of(chain: str, text: str) -> list[str]:
    return [
        line.removeprefix(f"-A {chain} ") for line in text.splitlines() if line.startswith(f"-A {chain} ")
    ]


def may_reach(allowed: tuple[str, ...], host: str, *, is_local: bool = False) -> bool:
    """Return whether a port other than CodeHub's can be reached, by the first rule that matches."""
    for fields in (rule.split() for rule in chain(allowed)):
        if "--dport" in fields or "--ctstate" in fields:
            continue
        if is_local if fields[0] == "-m" else IPv4Address(host) in IPv4Network(fields[1]):
            return fields[-1] == "RETURN"
    return True


@pytest.mark.parametrize("server", ["10.0.0.2", "168.63.129.16"])
def test_the_hosts_name_servers_may_be_asked_before_anything_is_denied(server: str) -> None:
    """Azure's name server has the address of a denied service."""
    rules = chain((), (server,))
    dns_rule = next(index for index, rule in enumerate(rules) if rule.startswith(f"-d {server} -p udp"))
    assert "--dport 53" in rules[dns_rule]
    assert not any(rule.endswith("DROP") for rule in rules[:dns_rule])


def test_private_networks_the_host_and_its_workspaces_are_denied() -> None:
    rules = chain(())
    assert [rule for rule in rules if rule.endswith("DROP")] == [
        "-m addrtype --dst-type LOCAL -j DROP",
        *(f"-d {network} -j DROP" for network in (POOL, *DENIED_NETWORKS)),
    ]


@pytest.mark.parametrize("allowed", ["10.0.0.0/8", "10.222.0.0/17", "0.0.0.0/0"])
def test_a_range_opens_neither_the_host_nor_other_workspaces(allowed: str) -> None:
    assert not may_reach((allowed,), "10.222.0.10")
    assert not may_reach((allowed,), "10.1.2.3", is_local=True)
    assert may_reach(("10.0.0.0/8",), "10.1.2.3")


def test_an_entry_for_a_single_address_opens_it() -> None:
    assert may_reach(("10.1.2.3/32",), "10.1.2.3", is_local=True)
    assert may_reach(("10.222.0.10/32",), "10.222.0.10")
    assert may_reach((str(POOL),), "10.222.0.10")
    assert not may_reach((str(POOL),), "10.222.0.9", is_local=True)


def test_on_this_machine_only_codehubs_users_connect_to_workspaces() -> None:
    text = chains_text("C", str(POOL), Egress(8080), (7, 0, 7))
    assert rules_of("C-OWN", text) == [
        "-m conntrack --ctstate ESTABLISHED,RELATED -j RETURN",
        "-m owner --uid-owner 0 -j RETURN",
        "-m owner --uid-owner 7 -j RETURN",
        "-j DROP",
    ]


def test_the_gateways_user_is_a_setting_with_the_coordinators_as_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert docker_options(Settings()).gateway_uid == os.geteuid()
    monkeypatch.setenv("GATEWAY_UID", "1234")
    assert docker_options(Settings()).gateway_uid == 1234


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nameserver 10.0.0.2\nnameserver 8.8.8.8\n", ("10.0.0.2", "8.8.8.8")),
        ("# nameserver 1.2.3.4\nsearch example.com\nnameserver 127.0.0.53\n", ()),
        ("nameserver fe80::1%eth0\nnameserver\n", ()),
    ],
)
def test_name_servers_of_the_host(tmp_path: Path, text: str, expected: tuple[str, ...]) -> None:
    file = tmp_path / "resolv.conf"
    file.write_text(text)
    assert host_nameservers(file) == expected
    assert host_nameservers(tmp_path / "missing") == ()
