"""Clients wait in one queue for a socket that accepts no connections, and only the first one tries."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest

from codehub.host import full_sockets
from codehub.host.full_sockets import FullSockets


class Socket:
    """Socket with room for a number of clients, which counts the attempts to connect."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.attempts = 0
        self.connected: list[int] = []

    def client(self, number: int) -> Callable[[], Awaitable[int]]:
        async def attempt() -> int:
            self.attempts += 1
            if not self.room:
                raise BlockingIOError
            self.room -= 1
            self.connected.append(number)
            return number

        return attempt


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_waiting_clients_cost_one_attempt_each_and_then_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(full_sockets, "FIRST_PAUSE", 0)
    sockets, full, count, rounds = FullSockets(), Socket(0), 1000, 50
    waiting = [asyncio.create_task(sockets.connect("a", full.client(each))) for each in range(count)]
    await turns(rounds)
    assert full.attempts <= count + rounds  # and not one of each client in each turn
    other = Socket(1)
    assert await sockets.connect("b", other.client(0)) == 0  # another socket is not delayed
    full.room = count
    assert await asyncio.gather(*waiting) == list(range(count))
    assert full.connected == list(range(count))
    assert not sockets._waiting and not sockets._locks


async def test_pauses_between_attempts_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    full = Socket(0)

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        full.room = int(len(pauses) == 12)

    monkeypatch.setattr(full_sockets.asyncio, "sleep", sleep)
    await FullSockets().connect("a", full.client(0))
    assert pauses[0] == full_sockets.FIRST_PAUSE
    assert pauses[-1] == full_sockets.LONGEST_PAUSE
    assert all(after == min(2 * before, 0.5) for before, after in itertools.pairwise(pauses))


async def test_a_client_that_gives_up_leaves_the_queue_to_the_others() -> None:
    sockets, full = FullSockets(), Socket(0)
    first, second = (asyncio.create_task(sockets.connect("a", full.client(each))) for each in (1, 2))
    await turns(5)
    first.cancel()
    full.room = 1
    assert await second == 2
    with pytest.raises(asyncio.CancelledError):
        await first
    assert not sockets._waiting and not sockets._locks
