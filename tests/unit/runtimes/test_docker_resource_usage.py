"""Statistics of the Docker Engine: what they show, and what becomes of garbage."""

import asyncio
from typing import Any

import pytest

from codehub.domain.observation import Unknown
from codehub.domain.resource_usage import Amount, CpuTime, ResourceUsage
from codehub.runtimes.docker.engine import ContainerSummary, EngineRefusal, EngineUnavailable
from codehub.runtimes.docker.resource_usage import AT_ONCE, ResourceMeter, cores_of, usage_of

STATS: dict[str, Any] = {
    "cpu_stats": {"cpu_usage": {"total_usage": 90_500_000_000}, "online_cpus": 2},
    "memory_stats": {"usage": 3000, "limit": 4096, "stats": {"inactive_file": 1000}},
    "pids_stats": {"current": 17, "limit": 512},
}


def test_what_the_engine_reports() -> None:
    assert usage_of("c1", STATS, 1.5) == ResourceUsage(
        "c1", CpuTime(90.5, 1.5), Amount(2000, 4096), Amount(17, 512)
    )


def test_version_1_of_control_groups_names_its_cache_otherwise() -> None:
    cache = {"inactive_file": 1, "total_inactive_file": 1000}
    stats = STATS | {"memory_stats": {"usage": 3000, "limit": 2**63 - 1, "stats": cache}}
    assert usage_of("c1", stats, None).memory == Amount(2000, None)


def test_a_container_without_caps() -> None:
    stats = STATS | {"pids_stats": {"current": 17, "limit": 18446744073709551615}}
    assert usage_of("c1", stats, None).processes == Amount(17, None)


@pytest.mark.parametrize(
    "stats",
    [
        None,
        [],
        "stats",
        {},
        {"cpu_stats": None, "memory_stats": [], "pids_stats": 7},
        {"cpu_stats": {"cpu_usage": {"total_usage": "lots"}}, "memory_stats": {"usage": -1}},
        {"cpu_stats": {"cpu_usage": {"total_usage": 1.5}}, "pids_stats": {"current": True}},
        {"memory_stats": {"usage": 2**63}, "pids_stats": {"current": None}},
    ],
)
def test_garbage_is_unknown_with_a_reason(stats: object) -> None:
    usage = usage_of("c1", stats, None)
    for value in (usage.cpu, usage.memory, usage.processes):
        assert isinstance(value, Unknown) and value.message.startswith("The Docker engine reports no")


def test_the_cap_in_cores() -> None:
    assert cores_of({"HostConfig": {"NanoCpus": 1_500_000_000}}) == 1.5
    for garbage in (None, {}, {"HostConfig": None}, {"HostConfig": {"NanoCpus": "many"}}, {"HostConfig": []}):
        assert cores_of(garbage) is None


def summary(name: str) -> ContainerSummary:
    return ContainerSummary(f"c-{name}", name, "op", "x", "running", "n", None, "/")


class FakeEngine:
    """Engine that fails, hangs or answers by the container's name."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.at_once = self.most_at_once = 0

    async def inspect(self, container_id: str, seconds: float) -> object:
        self.asked.append(f"inspect {container_id}")
        return {"HostConfig": {"NanoCpus": 2_000_000_000}}

    async def stats(self, container_id: str, seconds: float) -> object:
        self.asked.append(f"stats {container_id}")
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        if "hangs" in container_id:
            await asyncio.Event().wait()
        if "down" in container_id:
            raise EngineUnavailable("it does not answer")
        if "gone" in container_id:
            raise EngineRefusal(404, "no such container")
        if "garbage" in container_id:
            raise ValueError("this is not JSON")
        return STATS


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def meter(engine: FakeEngine) -> ResourceMeter:
    given: Any = engine
    return ResourceMeter(given)


@pytest.mark.parametrize("trouble", ["down", "gone", "garbage"])
async def test_trouble_with_one_container_hides_no_other(meter: ResourceMeter, trouble: str) -> None:
    found = await meter.measure([summary(trouble), summary("w1")], 10)
    assert found[trouble] == Unknown("The Docker engine did not report what this workspace uses.")
    assert found["w1"] == usage_of("c-w1", STATS, 2)


async def test_what_hangs_is_left_out_and_ends_the_measurements(meter: ResourceMeter) -> None:
    hanging = [summary(f"hangs{number}") for number in range(AT_ONCE)]
    found = await meter.measure([summary("w1"), *hanging, summary("w2")], 0.05)
    assert list(found) == ["w1"]


async def test_the_engine_gets_few_requests_at_once(engine: FakeEngine, meter: ResourceMeter) -> None:
    found = await meter.measure([summary(f"w{number}") for number in range(50)], 10)
    assert len(found) == 50
    assert engine.most_at_once == AT_ONCE


async def test_a_cap_is_read_once(engine: FakeEngine, meter: ResourceMeter) -> None:
    for _ in range(2):
        await meter.measure([summary("w1")], 10)
    assert engine.asked.count("inspect c-w1") == 1
    meter.forget_others({"c-w2"})
    await meter.measure([summary("w1")], 10)
    assert engine.asked.count("inspect c-w1") == 2
