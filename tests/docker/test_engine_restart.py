"""An engine that goes away and comes back."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from codehub.domain.states import ErrorReason
from codehub.runtimes.base import RuntimeFailure, Unobservable
from tests.docker.conftest import TINY_IMAGE, Bench
from tests.docker.engine import OwnEngine
from tests.docker.registry import running_registry
from tests.waiting import PATIENCE, eventually, until


@pytest.fixture(autouse=True)
def running_again(engine: OwnEngine) -> Iterator[None]:
    """Whatever happens, the next test has an engine."""
    yield
    if engine.try_docker("version").returncode != 0:
        engine.start()


async def test_an_engine_that_restarts_is_unobservable_meanwhile_and_nothing_reads_as_gone(
    bench: Bench,
) -> None:
    spec = bench.spec("w1")
    async with bench.listening() as hints:
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
        await until(lambda: hints.count("all") == 2, "the listener to listen again")
    await bench.runtime.start(spec)
    await bench.ready("w1")
    again = await bench.started("w2", attempt="op-1")
    host, port = (again.upstream or "").removeprefix("tcp:").split(":")
    assert bench.engine.inside("w1", f"nc -w 1 {host} {port} </dev/null").returncode != 0


async def test_an_engine_that_goes_away_during_a_pull_is_asked_again_when_it_is_back(bench: Bench) -> None:
    async with running_registry() as registry:
        spec = bench.spec("w1", image=replace(TINY_IMAGE, docker=registry.image("restarted")))
        async with bench.listening() as hints:
            await bench.runtime.start(spec)
            await asyncio.wait_for(registry.layer_asked.wait(), PATIENCE)
            bench.engine.stop()
            await until(lambda: "w1" in hints, "the pull to end")
        with pytest.raises(RuntimeFailure) as failure:
            await bench.runtime.start(spec)
        assert failure.value.reason is ErrorReason.Unreachable
        bench.engine.start()
        registry.go_on.set()

        async def ready() -> bool:
            await bench.runtime.start(spec)
            return (await bench.runtime.status("w1")).ready

        await eventually(ready, "the image to be pulled, and its container to be ready")
