"""The control plane: the cost of an idle pass, how soon a wish is acted on, two thousand starts at once."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog
import uvloop

from bench.control import idle, starts, wishes
from bench.control.stage import DurableServices
from bench.machine import Quiet

SIZES = (1_000, 10_000, 100_000)
WISHES = 300
STARTS = 2_000
T = TypeVar("T")


def measure(quiet: Quiet, rounds: int, scale: float) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    sizes = [max(100, int(size * scale)) for size in SIZES]
    with DurableServices.running() as services:
        idle.show([quiet.sample(lambda size=size: _run(idle.idle(services, size))) for size in sizes])
        wishes.show(*quiet.sample(lambda: _run(wishes.wishes(services, max(20, int(WISHES * scale))))))
        count = max(50, int(STARTS * scale))
        starts.show([quiet.sample(lambda: _run(starts.starts(services, count))) for _ in range(rounds)])


def _run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)
