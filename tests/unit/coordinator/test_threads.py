"""One slow operation never delays another workspace."""

import asyncio
import threading

from codehub.coordinator.main import enlarge_thread_pool
from codehub.coordinator.work_queue import WORKERS
from tests.waiting import PATIENCE


async def test_as_many_hung_calls_as_there_are_workers_leave_threads_for_others() -> None:
    enlarge_thread_pool()
    hang = threading.Event()
    hung = [asyncio.create_task(asyncio.to_thread(hang.wait)) for _ in range(WORKERS)]
    try:
        async with asyncio.timeout(PATIENCE):
            assert await asyncio.to_thread(lambda: "done") == "done"
    finally:
        hang.set()
        await asyncio.gather(*hung)
