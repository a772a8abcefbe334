"""Token buckets and the fair queue."""

import asyncio

import pytest

from codehub import rate_limits
from codehub.domain.problems import TooManyRequests
from codehub.rate_limits import FairQueue, TokenBuckets

FAILURES, REFILL_PER_SECOND = 20, 0.5


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_bucket_refills_with_time() -> None:
    clock = Clock()
    buckets = TokenBuckets(FAILURES, REFILL_PER_SECOND, "Too many.", clock)
    for _ in range(FAILURES):
        buckets.take("a")
    with pytest.raises(TooManyRequests) as problem:
        buckets.take("a")
    assert problem.value.retry_after == 1 / REFILL_PER_SECOND
    clock.now += 1 / REFILL_PER_SECOND
    buckets.take("a")
    with pytest.raises(TooManyRequests):
        buckets.take("a")
    clock.now += 10**6
    for _ in range(FAILURES):
        buckets.take("a")
    with pytest.raises(TooManyRequests):
        buckets.take("a")


def test_a_refund_is_one_token() -> None:
    buckets = TokenBuckets(FAILURES, REFILL_PER_SECOND, "Too many.", Clock())
    buckets.refund("a")
    for _ in range(FAILURES):
        buckets.take("a")
    buckets.refund("a")
    buckets.take("a")
    with pytest.raises(TooManyRequests):
        buckets.take("a")


def test_many_networks_use_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "MAX_NETWORKS", 3)
    buckets = TokenBuckets(FAILURES, REFILL_PER_SECOND, "Too many.", Clock())
    for number in range(10):
        buckets.take(str(number))
    assert len(buckets._buckets) == 3


class Clients:
    """Clients of a queue with one slot, which each of them keeps until `finish`."""

    def __init__(self, waiting: int) -> None:
        self.queue = FairQueue(1, waiting, "Full.")
        self.order: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.released = asyncio.Event()

    async def arrive(self, *names: str) -> None:
        """Let clients arrive one after the other; the first letter of a name is the network."""
        for name in names:
            self.tasks[name] = asyncio.create_task(self._take_slot(name))
            await asyncio.sleep(0)

    async def _take_slot(self, name: str) -> None:
        async with self.queue.slot(name[0]):
            self.order.append(name)
            await self.released.wait()

    async def finish(self) -> list[str]:
        """Return the clients that were rejected."""
        self.released.set()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        rejected = (name for name, task in self.tasks.items() if not task.cancelled() and task.exception())
        return list(rejected)


async def test_networks_take_turns() -> None:
    clients = Clients(waiting=9)
    await clients.arrive("a1", "a2", "a3", "a4", "b1", "b2", "c1")
    assert await clients.finish() == []
    assert clients.order == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


async def test_in_a_full_queue_the_network_with_most_waiters_loses_one() -> None:
    clients = Clients(waiting=4)
    await clients.arrive("a1", "a2", "a3", "a4", "a5", "b1", "c1", "b2", "a6")
    assert await clients.finish() == ["a4", "a5", "b2", "a6"]
    assert clients.order == ["a1", "a2", "b1", "c1", "a3"]


@pytest.mark.parametrize("when", ["while it waits", "as its turn comes", "as it is rejected"])
async def test_a_client_that_leaves_keeps_no_slot(when: str) -> None:
    clients = Clients(waiting=2)
    await clients.arrive("a1", "a2", "a3")
    leaving = "a2"
    if when == "as its turn comes":
        clients.tasks["a1"].cancel()
        await asyncio.sleep(0)
    elif when == "as it is rejected":
        await clients.arrive("b1")
        leaving = "a3"
    clients.tasks[leaving].cancel()
    assert await clients.finish() == []
    assert leaving not in clients.order
    await clients.arrive("c1")
    assert clients.order[-1] == "c1", "the slot is free"
