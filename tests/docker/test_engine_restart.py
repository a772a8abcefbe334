"""An engine that goes away and comes back."""

import asyncio
from collections.abc import Iterator

import pytest

from codehub.domain.states import ErrorReason
from codehub.runtimes.base import RuntimeFailure, Unobservable
from tests.docker.conftest import Bench
from tests.docker.engine import OwnEngine
from tests.docker.waiting import until


@pytest.fixture(autouse=True)
def running_again(engine: OwnEngine) -> Iterator[None]:
    """Whatever happens, the next test has an engine."""
    yield
    if engine.try_docker("version").returncode != 0:
        engine.start()


async def test_an_engine_that_restarts_is_unobservable_meanwhile_and_nothing_reads_as_gone(
    bench: Bench,
) -> None:
    hints: list[str] = []
    listening = asyncio.create_task(bench.runtime.hints(hints.append, lambda: hints.append("all")))
    spec = bench.spec("w1")
    await bench.runtime.start(spec)
    await bench.ready("w1")
    await bench.started("w2")
    bench.engine.stop()
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
    listening.cancel()
    await bench.runtime.start(spec)
    await bench.ready("w1")
    again = await bench.started("w2", attempt="op-1")
    host, port = (again.upstream or "").removeprefix("tcp:").split(":")
    assert bench.engine.inside("w1", f"nc -w 1 {host} {port} </dev/null").returncode != 0
