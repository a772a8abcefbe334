"""Metrics of the work queue."""

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from codehub.coordinator.metrics import CoordinatorMetrics
from codehub.coordinator.work_queue import WorkQueue
from tests.waiting import until


def value(metrics: CoordinatorMetrics, name: str) -> float:
    families = text_string_to_metric_families(metrics.exposition()[0].decode())
    return next(sample.value for family in families for sample in family.samples if sample.name == name)


async def test_the_queue_shows_how_many_wait_and_how_long_the_first_has_waited() -> None:
    release = asyncio.Event()
    started: list[str] = []

    async def work(key: str) -> None:
        started.append(key)
        await release.wait()

    queue = WorkQueue(work, workers=1)
    metrics = CoordinatorMetrics()
    metrics.begin_term(1, queue)
    for key in ("a", "b", "c"):
        queue.add(key)
    queue.add("later", delay=3600)
    running = asyncio.create_task(queue.run())
    await until(lambda: started == ["a"], "the first item to start")
    assert value(metrics, "codehub_coordinator_queue_depth") == 2
    before = value(metrics, "codehub_coordinator_queue_oldest_seconds")
    await until(
        lambda: value(metrics, "codehub_coordinator_queue_oldest_seconds") > before > 0, "the wait to grow"
    )
    release.set()
    await until(lambda: started == ["a", "b", "c"], "the other items to start")
    assert value(metrics, "codehub_coordinator_queue_depth") == 0
    assert value(metrics, "codehub_coordinator_queue_oldest_seconds") == 0
    metrics.end_term()
    assert value(metrics, "codehub_coordinator_queue_depth") == 0
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
