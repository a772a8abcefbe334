"""What real process workspaces use: CPU, memory and processes, with and without control groups."""

from dataclasses import replace

import pytest

from codehub.domain.observation import Unknown
from codehub.domain.resource_usage import Amount, CpuTime, ResourceUsage
from codehub.runtimes.process import resource_usage
from tests.integration.runtimes.conftest import TINY, RuntimeFixture
from tests.waiting import eventually

BURN = "(timeout 120 sh -c 'while :; do :; done' >/dev/null 2>&1 &)"
FILL = "(python3 -c 'import time; held = bytearray(64 << 20); time.sleep(120)' >/dev/null 2>&1 &)"
CAPPED = replace(TINY, cpus=1.5, memory_bytes=512 << 20, pids=200)


async def usage(fixture: RuntimeFixture, workspace_id: str) -> ResourceUsage:
    found = (await fixture.runtime.resource_usage([workspace_id], 60))[workspace_id]
    assert isinstance(found, ResourceUsage)
    return found


async def cpu_seconds(fixture: RuntimeFixture, workspace_id: str) -> float:
    cpu = (await usage(fixture, workspace_id)).cpu
    assert isinstance(cpu, CpuTime)
    return cpu.seconds


async def used_memory(fixture: RuntimeFixture, workspace_id: str) -> int:
    memory = (await usage(fixture, workspace_id)).memory
    assert isinstance(memory, Amount)
    return memory.used


async def until_busy(fixture: RuntimeFixture, busy: str, idle: str) -> None:
    """Wait until the busy one has used a second of CPU time more than before; the idle one has not."""
    before, idle_before = await cpu_seconds(fixture, busy), await cpu_seconds(fixture, idle)
    assert await fixture.inside(busy, BURN) == ""
    await eventually(lambda: cpu_seconds(fixture, busy), "CPU time to be counted", lambda s: s > before + 1)
    assert await cpu_seconds(fixture, idle) - idle_before < 0.5


async def test_what_a_workspace_burns_counts_for_it_alone_and_its_caps_are_shown(
    fixture: RuntimeFixture,
) -> None:
    if set((await fixture.runtime.barriers()).cgroups.parents) != {"cpu", "memory", "pids"}:
        pytest.skip("needs control groups that may be made: run as root, with /sys/fs/cgroup writable")
    await fixture.started("busy", CAPPED)
    await fixture.started("idle", CAPPED)
    await until_busy(fixture, "busy", "idle")
    before = await used_memory(fixture, "busy")
    await fixture.inside("busy", FILL)
    await eventually(
        lambda: used_memory(fixture, "busy"), "memory to be counted", lambda n: n > before + (60 << 20)
    )
    found = await usage(fixture, "busy")
    assert isinstance(found.cpu, CpuTime) and found.cpu.cores == 1.5
    assert isinstance(found.memory, Amount) and found.memory.limit == 512 << 20
    assert isinstance(found.processes, Amount) and found.processes.limit is not None
    assert 4 <= found.processes.used < found.processes.limit
    assert found.run == "op-1 groups"


async def test_without_control_groups_the_processes_are_counted(
    fixture: RuntimeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPU time of programs that have ended counts too."""
    monkeypatch.setattr(resource_usage, "_read_file", lambda file: None)
    await fixture.started("busy")
    await fixture.started("idle")
    await until_busy(fixture, "busy", "idle")
    found = await usage(fixture, "busy")
    assert found.run == "op-1 processes"
    assert isinstance(found.memory, Amount) and found.memory.used > 1 << 20
    assert found.memory.limit is None
    assert isinstance(found.processes, Amount) and found.processes.used >= 3
    before = await cpu_seconds(fixture, "idle")
    await fixture.inside("idle", "timeout 120 python3 -c 'import time\nwhile time.process_time() < 1: pass'")
    assert await cpu_seconds(fixture, "idle") >= before + 0.9


async def test_only_what_runs_is_measured_in_the_order_asked_for(fixture: RuntimeFixture) -> None:
    for name in ("w1", "w2", "w3"):
        await fixture.started(name)
    await fixture.runtime.stop("w2")
    assert list(await fixture.runtime.resource_usage(["w3", "none", "w2", "w1"], 60)) == ["w3", "w1"]
    assert await fixture.runtime.resource_usage(["w1"], -1) == {}


async def test_a_damaged_state_is_left_out_or_said_and_hides_no_other(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    await fixture.started("w2")
    state = fixture.directory("w1").state_file
    kept = state.read_bytes()
    state.write_bytes(b"{}")
    try:
        found = await fixture.runtime.resource_usage(["w1", "w2"], 60)
    finally:
        state.write_bytes(kept)
    assert "w1" not in found or isinstance(found["w1"], Unknown)
    assert isinstance(found["w2"], ResourceUsage)


async def test_a_new_start_is_a_new_run(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    before = (await usage(fixture, "w1")).run
    await fixture.runtime.stop("w1")
    await fixture.runtime.start(fixture.spec("w1", op_id="op-2"))
    await fixture.until("w1", lambda fact: fact.ready)
    assert (await usage(fixture, "w1")).run != before
