"""The allowance of a network, the turns that networks take, and the memory of known ones."""

import asyncio

import pytest

from codehub import network_limits
from codehub.bus import known_addresses
from codehub.bus.known_addresses import KnownAddresses
from codehub.domain.problems import TooManyRequests
from codehub.network_limits import TokenBuckets, FairQueue

FAILURES, REFILL_PER_SECOND = 20, 0.5


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_an_allowance_fills_up_again_with_time() -> None:
    clock = Clock()
    allowance = TokenBuckets(FAILURES, REFILL_PER_SECOND, "Too many.", clock)
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
    allowance = TokenBuckets(FAILURES, REFILL_PER_SECOND, "Too many.", Clock())
    allowance.refund("a")
    for _ in range(FAILURES):
        allowance.take("a")
    allowance.refund("a")
    allowance.take("a")
    with pytest.raises(TooManyRequests):
        allowance.take("a")


def test_many_networks_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_limits, "MAX_NETWORKS", 3)
    allowance = TokenBuckets(FAILURES, REFILL_PER_SECOND, "Too many.", Clock())
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


class Crowd:
    """People who sign in through a share with one place; each holds it until the next one is let in."""

    def __init__(self, waiting: int) -> None:
        self.share = FairQueue(1, waiting, "Full.")
        self.order: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.go_on = asyncio.Event()

    async def come(self, *names: str) -> None:
        """Let people come, one after the other; the first letter of a name is the network."""
        for name in names:
            self.tasks[name] = asyncio.create_task(self._sign_in(name))
            await asyncio.sleep(0)

    async def _sign_in(self, name: str) -> None:
        async with self.share.slot(name[0]):
            self.order.append(name)
            await self.go_on.wait()

    async def finish(self) -> list[str]:
        """Return who was rejected."""
        self.go_on.set()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        rejected = (name for name, task in self.tasks.items() if not task.cancelled() and task.exception())
        return list(rejected)


async def test_networks_take_turns() -> None:
    crowd = Crowd(waiting=9)
    await crowd.come("a1", "a2", "a3", "a4", "b1", "b2", "c1")
    assert await crowd.finish() == []
    assert crowd.order == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


async def test_in_a_full_queue_the_network_with_most_waiting_makes_room() -> None:
    crowd = Crowd(waiting=4)
    await crowd.come("a1", "a2", "a3", "a4", "a5", "b1", "c1", "b2", "a6")
    assert await crowd.finish() == ["a4", "a5", "b2", "a6"]
    assert crowd.order == ["a1", "a2", "b1", "c1", "a3"]


@pytest.mark.parametrize("when", ["while it waits", "as its turn comes", "as it is rejected"])
async def test_a_client_that_goes_away_keeps_no_place(when: str) -> None:
    crowd = Crowd(waiting=2)
    await crowd.come("a1", "a2", "a3")
    going = "a2"
    if when == "as its turn comes":
        crowd.tasks["a1"].cancel()
        await asyncio.sleep(0)
    elif when == "as it is rejected":
        await crowd.come("b1")
        going = "a3"
    crowd.tasks[going].cancel()
    assert await crowd.finish() == []
    assert going not in crowd.order
    await crowd.come("c1")
    assert crowd.order[-1] == "c1", "the place is free"
