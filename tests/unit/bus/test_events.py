"""A feed keeps the hints that a slow reader has not read, within bounds."""

import asyncio

from codehub.bus.events import MAX_PENDING_HINTS, Changes, Feed
from tests.waiting import PATIENCE


async def test_repeated_hints_are_merged() -> None:
    feed = Feed()
    for workspace_id in ("a", "b", "a"):
        feed.hint(workspace_id)
    assert await feed.changes(PATIENCE) == Changes(workspace_ids=("a", "b"))
    assert await feed.changes(0) == Changes()


async def test_too_many_hints_become_everything() -> None:
    feed = Feed()
    for number in range(MAX_PENDING_HINTS + 1):
        feed.hint(str(number))
    assert await feed.changes(PATIENCE) == Changes(everything=True)
    feed.hint("a")
    assert await feed.changes(PATIENCE) == Changes(workspace_ids=("a",))


async def test_a_waiting_reader_is_woken() -> None:
    feed = Feed()
    waiting = asyncio.create_task(feed.changes(PATIENCE))
    await asyncio.sleep(0)
    feed.hint("a")
    assert await waiting == Changes(workspace_ids=("a",))


async def test_the_end_is_not_a_change() -> None:
    feed = Feed()
    feed.end()
    await asyncio.wait_for(feed.wait_ended(), PATIENCE)
    assert await feed.changes(0) == Changes()
