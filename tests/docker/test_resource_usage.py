"""What real containers use, from the engine's statistics."""

from dataclasses import replace

import pytest

from codehub.domain.resource_usage import Amount, CpuTime, ResourceUsage
from codehub.runtimes.base import RuntimeUnobservable
from tests.docker.conftest import TINY_IMAGE, RuntimeFixture
from tests.waiting import eventually

BURN = "timeout 120 sh -c 'while :; do :; done' >/dev/null 2>&1 &"


async def usage(fixture: RuntimeFixture, workspace_id: str) -> ResourceUsage:
    found = (await fixture.runtime.resource_usage([workspace_id], 60))[workspace_id]
    assert isinstance(found, ResourceUsage)
    return found


async def cpu_seconds(fixture: RuntimeFixture, workspace_id: str) -> float:
    cpu = (await usage(fixture, workspace_id)).cpu
    assert isinstance(cpu, CpuTime)
    return cpu.seconds


async def test_what_a_container_burns_counts_for_it_alone_and_its_caps_are_shown(
    fixture: RuntimeFixture,
) -> None:
    await fixture.started("busy", image=replace(TINY_IMAGE, cpus=0.75))
    await fixture.started("idle")
    idle_before = await cpu_seconds(fixture, "idle")
    before = await cpu_seconds(fixture, "busy")
    fixture.engine.inside("busy", BURN)
    await eventually(lambda: cpu_seconds(fixture, "busy"), "CPU time to be counted", lambda s: s > before + 1)
    assert await cpu_seconds(fixture, "idle") - idle_before < 0.5
    found = await usage(fixture, "busy")
    assert isinstance(found.cpu, CpuTime) and found.cpu.cores == 0.75
    assert isinstance(found.memory, Amount) and found.memory.limit == 64 << 20
    assert 0 < found.memory.used < 64 << 20
    assert isinstance(found.processes, Amount)
    assert found.processes.limit == 64 and found.processes.used >= 2


async def test_only_what_runs_is_measured_and_a_new_container_is_a_new_run(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    await fixture.started("w2")
    before = (await usage(fixture, "w1")).run
    await fixture.runtime.stop("w2")
    assert list(await fixture.runtime.resource_usage(["none", "w2", "w1"], 60)) == ["w1"]
    await fixture.runtime.delete("w1")
    await fixture.started("w1", attempt="op-1")
    assert (await usage(fixture, "w1")).run != before


async def test_an_engine_that_does_not_answer_is_unobservable(fixture: RuntimeFixture) -> None:
    gone = fixture.other_runtime(url="unix:///nonexistent/docker.sock")
    with pytest.raises(RuntimeUnobservable):
        await gone.resource_usage(["w1"], 60)
    await gone.close()
