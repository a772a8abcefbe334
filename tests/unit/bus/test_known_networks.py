"""The copy of known networks in memory."""

import pytest

from codehub.bus import known_networks
from codehub.bus.known_networks import KnownNetworks


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> KnownNetworks:
    monkeypatch.setattr(known_networks, "MAX_KNOWN", 6)
    monkeypatch.setattr(known_networks, "MAX_PER_USER", 3)
    return KnownNetworks(None)  # type: ignore[arg-type]


def test_known_networks_use_bounded_memory_and_keep_the_newest(known: KnownNetworks) -> None:
    now = known_networks.utc_now().timestamp()
    dropped = known._merge({f"user{number} {number}": now + number for number in range(10)})
    assert [name for name in map(str, range(10)) if name in known] == ["4", "5", "6", "7", "8", "9"]
    assert dropped == ["user0 0", "user1 1", "user2 2", "user3 3"]
    assert known._merge({"somebody old": now - known_networks.KEPT_SECONDS}) == ["somebody old"]
    assert "old" not in known


def test_one_user_has_a_share_of_the_known_networks_and_keeps_the_newest(known: KnownNetworks) -> None:
    now = known_networks.utc_now().timestamp()
    known._merge({"alice home": now, "bob home": now, "bob office": now + 1})
    for number in range(100):
        known._merge({f"mallory {number}": now + 2 + number})
    assert "home" in known and "office" in known
    assert [number for number in range(100) if str(number) in known] == [97, 98, 99]


def test_a_network_stays_known_while_one_of_its_users_has_it(known: KnownNetworks) -> None:
    now = known_networks.utc_now().timestamp()
    known._merge({"alice office": now, "bob office": now + 1, "bob 1": now + 2, "bob 2": now + 3})
    assert known._merge({"bob 3": now + 4}) == ["bob office"]
    assert "office" in known
