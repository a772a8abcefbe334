"""The copy of known networks in memory."""

import pytest

from codehub.bus import known_networks
from codehub.bus.known_networks import KnownNetworks


def test_known_networks_use_bounded_memory_and_keep_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_networks, "MAX_KNOWN", 3)
    known = KnownNetworks(None)  # type: ignore[arg-type]
    now = known_networks.utc_now().timestamp()
    known._merge({str(number): now + number for number in range(10)})
    assert [name for name in map(str, range(10)) if name in known] == ["7", "8", "9"]
    known._merge({"old": now - known_networks.KEPT_SECONDS})
    assert "old" not in known
