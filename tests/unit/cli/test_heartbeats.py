"""Heartbeats of workers."""

import asyncio

from codehub.cli.heartbeats import START_FACTOR, Heartbeats
from tests.waiting import until

WORKER = 4711


async def test_a_worker_whose_loop_runs_is_never_silent() -> None:
    heartbeats = Heartbeats(2, max_silent_checks=3)
    async with heartbeats.beating(1):
        await asyncio.sleep(0)
        for _ in range(4):
            seen = heartbeats._read(1)
            assert heartbeats.find_silent({WORKER: 1}) == []
            await until(lambda seen=seen: heartbeats._read(1) > seen, "the next beat")


async def test_a_worker_that_stops_beating_is_silent_after_the_maximum_of_checks() -> None:
    heartbeats = Heartbeats(1, max_silent_checks=3)
    async with heartbeats.beating(0):
        await asyncio.sleep(0)
    assert [heartbeats.find_silent({WORKER: 0}) for _ in range(5)] == [[], [], [], [WORKER], [WORKER]]


def test_a_worker_that_hangs_before_its_first_beat_is_found_and_may_take_longer() -> None:
    heartbeats = Heartbeats(1, max_silent_checks=2)
    for _ in range(2 * START_FACTOR):
        assert heartbeats.find_silent({WORKER: 0}) == []
    assert heartbeats.find_silent({WORKER: 0}) == [WORKER]


async def test_a_worker_that_starts_or_was_replaced_is_not_silent() -> None:
    heartbeats = Heartbeats(1, max_silent_checks=1)
    assert all(heartbeats.find_silent({WORKER: 0}) == [] for _ in range(5))
    async with heartbeats.beating(0):
        await asyncio.sleep(0)
    heartbeats.find_silent({WORKER: 0})
    assert heartbeats.find_silent({WORKER: 0}) == [WORKER]
    heartbeats.restart(0)
    assert all(heartbeats.find_silent({WORKER + 1: 0}) == [] for _ in range(5))
