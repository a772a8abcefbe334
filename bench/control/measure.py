"""Control plane: cost of an idle sweep, latency of a request, two thousand concurrent starts."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog
import uvloop

from bench.control import concurrent_starts, idle_sweep, request_latency
from bench.control.environment import DurableServices
from bench.sampler import Sampler

SIZES = (1_000, 10_000, 100_000)
REQUESTS = 300
STARTS = 2_000
T = TypeVar("T")


def measure(sampler: Sampler, rounds: int, scale: float) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    sizes = [max(100, int(size * scale)) for size in SIZES]
    with DurableServices.running() as services:
        idle_sweep.show(
            [sampler.sample(lambda size=size: _run(idle_sweep.measure(services, size))) for size in sizes]
        )
        requests = max(20, int(REQUESTS * scale))
        request_latency.show(*sampler.sample(lambda: _run(request_latency.measure(services, requests))))
        starts = max(50, int(STARTS * scale))
        concurrent_starts.show(
            [sampler.sample(lambda: _run(concurrent_starts.measure(services, starts))) for _ in range(rounds)]
        )


def _run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)
