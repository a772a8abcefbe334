"""Which connections share a limit."""

from ipaddress import ip_network

from codehub.gateway.address_limits import LOOPBACK_SHARES, AddressShares, peer_address
from codehub.gateway.trusted_proxies import TrustedProxies


def shares(*trusted: str) -> AddressShares:
    return AddressShares(10, TrustedProxies([ip_network(network) for network in trusted]))


def test_a_share_is_an_ipv4_address_or_an_ipv6_64() -> None:
    found = shares()
    first = found.enter("2001:db8:0:1::1")
    assert found.enter("2001:db8:0:1:ffff::2") is first
    assert found.enter("2001:db8:0:2::1") is not first
    assert found.enter("192.0.2.1") is found.enter("192.0.2.1")
    assert found.enter("192.0.2.1") is not found.enter("192.0.2.2")
    assert first.connections == 2


def test_an_address_is_the_same_in_both_families() -> None:
    assert peer_address(("::ffff:192.0.2.1", 1, 0, 0)) == peer_address(("192.0.2.1", 1)) == "192.0.2.1"
    assert peer_address(None) == ""


def test_beyond_its_limit_a_share_is_exceeded_and_beyond_twice_that_flooded() -> None:
    found = shares()
    seen = []
    for _ in range(21):
        share = found.enter("192.0.2.1")
        seen.append((share.is_exceeded, share.is_flooded))
    assert seen == [(False, False)] * 10 + [(True, False)] * 10 + [(True, True)]


def test_this_machine_has_a_larger_share() -> None:
    found = shares()
    assert {found.enter(peer).limit for peer in ("127.0.0.1", "::1")} == {10 * LOOPBACK_SHARES}


def test_each_connection_of_a_trusted_proxy_has_a_share_without_a_limit() -> None:
    found = shares("10.0.0.0/8")
    one, other = found.enter("10.1.2.3"), found.enter("10.1.2.3")
    one.costly = 100
    assert one is not other and one.is_spent and not other.is_spent
    assert not any(found.enter("10.1.2.3").is_exceeded for _ in range(100))


def test_a_share_is_forgotten_when_it_has_no_connections_and_its_cost_is_halved_away() -> None:
    found = shares()
    share = found.enter("192.0.2.1")
    share.costly = 3
    share.connections -= 1
    found.start_tick()
    assert found.enter("192.0.2.1") is share and share.costly == 1
    share.connections -= 1
    found.start_tick()
    assert found.enter("192.0.2.1") is not share
