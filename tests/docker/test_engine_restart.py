"""Restarts of the engine."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from codehub.domain.states import ErrorReason
from codehub.runtimes.base import RuntimeFailure, RuntimeUnobservable
from tests.docker.conftest import TINY_IMAGE, RuntimeFixture
from tests.docker.engine import OwnEngine
from tests.docker.registry import running_registry
from tests.waiting import PATIENCE, eventually, until


@pytest.fixture(autouse=True)
def running_again(engine: OwnEngine) -> Iterator[None]:
    """Start the engine again for the next test, even after a failure."""
    yield
    if engine.try_docker("version").returncode != 0:
        engine.start()


async def test_during_a_restart_the_engine_is_unobservable_and_no_container_counts_as_gone(
    fixture: RuntimeFixture,
) -> None:
    spec = fixture.spec("w1")
    async with fixture.listening() as hints:
        await fixture.runtime.start(spec)
        await fixture.ready("w1")
        await fixture.started("w2")
        fixture.engine.stop()
        with pytest.raises(RuntimeUnobservable):
            await fixture.runtime.observe()
        with pytest.raises(RuntimeUnobservable):
            await fixture.runtime.status("w1")
        with pytest.raises(RuntimeFailure) as failure:
            await fixture.runtime.start(spec)
        assert failure.value.reason is ErrorReason.Unreachable

        fixture.engine.start()
        back = await fixture.runtime.status("w1")
        assert (back.exists, back.running) == (True, False)  # without live-restore a restart ends containers
        await until(lambda: hints.count("all") == 2, "the listener to listen again")
    await fixture.runtime.start(spec)
    await fixture.ready("w1")
    again = await fixture.started("w2", attempt="op-1")
    host, port = (again.upstream or "").removeprefix("tcp:").split(":")
    assert fixture.engine.inside("w1", f"nc -w 1 {host} {port} </dev/null").returncode != 0


async def test_a_pull_is_retried_when_the_engine_is_back(
    fixture: RuntimeFixture,
) -> None:
    async with running_registry() as registry:
        spec = fixture.spec("w1", image=replace(TINY_IMAGE, docker=registry.image("restarted")))
        async with fixture.listening() as hints:
            await fixture.runtime.start(spec)
            await asyncio.wait_for(registry.layer_requested.wait(), PATIENCE)
            fixture.engine.stop()
            await until(lambda: "w1" in hints, "the pull to end")
        with pytest.raises(RuntimeFailure) as failure:
            await fixture.runtime.start(spec)
        assert failure.value.reason is ErrorReason.Unreachable
        fixture.engine.start()
        registry.may_continue.set()

        async def ready() -> bool:
            await fixture.runtime.start(spec)
            return (await fixture.runtime.status("w1")).ready

        await eventually(ready, "the image to be pulled, and its container to be ready")
