"""The allowance of a network, and the memory of known ones, by a clock that the test moves."""

import pytest

from codehub.api import sign_in_lane
from codehub.api.sign_in_lane import FAILURES, REFILL_PER_SECOND, Allowance
from codehub.bus import known_addresses
from codehub.bus.known_addresses import KnownAddresses
from codehub.domain.problems import TooManyRequests


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_an_allowance_fills_up_again_with_time() -> None:
    clock = Clock()
    allowance = Allowance(clock)
    for _ in range(FAILURES):
        allowance.take("a")
    with pytest.raises(TooManyRequests) as problem:
        allowance.take("a")
    assert problem.value.retry_after == 1 / REFILL_PER_SECOND
    clock.now += 1 / REFILL_PER_SECOND
    allowance.take("a")
    with pytest.raises(TooManyRequests):
        allowance.take("a")
    clock.now += 10**6
    for _ in range(FAILURES):
        allowance.take("a")
    with pytest.raises(TooManyRequests):
        allowance.take("a")


def test_a_token_that_is_given_back_is_one_token() -> None:
    allowance = Allowance(Clock())
    allowance.give_back("a")
    for _ in range(FAILURES):
        allowance.take("a")
    allowance.give_back("a")
    allowance.take("a")
    with pytest.raises(TooManyRequests):
        allowance.take("a")


def test_many_networks_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign_in_lane, "MAX_NETWORKS", 3)
    allowance = Allowance(Clock())
    for number in range(10):
        allowance.take(str(number))
    assert len(allowance._buckets) == 3


def test_known_addresses_take_bounded_memory_and_the_newest_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_addresses, "MAX_KNOWN", 3)
    known = KnownAddresses(None)  # type: ignore[arg-type]
    now = known_addresses.utc_now().timestamp()
    known._merge({str(number): now + number for number in range(10)})
    assert [name for name in map(str, range(10)) if name in known] == ["7", "8", "9"]
    known._merge({"old": now - known_addresses.KEPT_SECONDS})
    assert "old" not in known
