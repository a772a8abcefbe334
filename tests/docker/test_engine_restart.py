"""An engine that goes away and comes back."""

import asyncio
from collections.abc import Callable

import pytest

from codehub.domain.states import ErrorReason
from codehub.runtimes.base import RuntimeFailure, Unobservable
from tests.docker.conftest import Bench
from tests.docker.waiting import until


async def test_while_the_engine_is_down_nothing_reads_as_gone(
    bench: Bench, broken: Callable[[], None]
) -> None:
    hints: list[str] = []
    listening = asyncio.create_task(bench.runtime.hints(hints.append, lambda: hints.append("all")))
    spec = bench.spec("w1")
    await bench.runtime.start(spec)
    await bench.ready("w1")
    broken()
    with pytest.raises(Unobservable):
        await bench.runtime.observe()
    with pytest.raises(Unobservable):
        await bench.runtime.status("w1")
    with pytest.raises(RuntimeFailure) as failure:
        await bench.runtime.start(spec)
    assert failure.value.reason is ErrorReason.Unreachable

    bench.engine.start()
    back = await bench.runtime.status("w1")
    assert (back.exists, back.running) == (True, False)  # without live-restore a restart ends containers

    async def heard() -> bool:
        return hints.count("all") == 2

    await until(heard, "the listener to listen again")
    await bench.runtime.start(spec)
    await bench.ready("w1")
    listening.cancel()


async def test_the_wall_stands_after_an_orderly_restart(bench: Bench) -> None:
    await bench.started("w1")
    await bench.started("w2")
    bench.engine.stop()
    bench.engine.start()
    facts = {name: await bench.started(name, attempt="op-1") for name in ("w1", "w2")}
    host, port = (facts["w2"].upstream or "").removeprefix("tcp:").split(":")
    assert bench.engine.inside("w1", f"nc -w 1 {host} {port} </dev/null").returncode != 0
