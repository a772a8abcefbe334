"""The copy of known addresses in memory."""

import pytest

from codehub.bus import known_addresses
from codehub.bus.known_addresses import KnownAddresses


def test_known_addresses_use_bounded_memory_and_keep_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_addresses, "MAX_KNOWN", 3)
    known = KnownAddresses(None)  # type: ignore[arg-type]
    now = known_addresses.utc_now().timestamp()
    known._merge({str(number): now + number for number in range(10)})
    assert [name for name in map(str, range(10)) if name in known] == ["7", "8", "9"]
    known._merge({"old": now - known_addresses.KEPT_SECONDS})
    assert "old" not in known
