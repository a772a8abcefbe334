"""CPU use keeps a workspace awake: the usage sampler and the TTL runner on a real PostgreSQL and Redis.

The first tests set the counter of a container. The last one burns CPU in a real workspace.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisDown
from sqlalchemy import select

from codehub.bus.usage_samples import UsageSamples
from codehub.coordinator import leadership_loop
from codehub.coordinator.usage_sampler import UsageSampler
from codehub.database import gate
from codehub.database.tables import cpu_holds
from codehub.domain import awake
from codehub.domain.awake import CPU_WINDOW, SEEN_WITHIN
from codehub.domain.disk import FreeSpace
from codehub.domain.observation import Unknown
from codehub.domain.resource_usage import Amount, CpuTime, ResourceUsage
from codehub.domain.states import DesiredState, Phase
from codehub.domain.user_limits import Limits
from codehub.runtimes.base import RuntimeUnobservable
from tests.integration.coordinator.conftest import CoordinatorStack
from tests.integration.coordinator.test_awake import (
    BACKENDS,
    BEGIN,
    DEFAULTS,
    HOUR,
    LIMIT,
    MINUTE,
    TTL,
    Stack,
)
from tests.integration.coordinator.test_awake import stack as awake_stack
from tests.waiting import eventually

__all__ = ["awake_stack"]


@dataclass
class Counters:
    """Runtime whose containers have these counters. An exception stands for trouble."""

    cpu: dict[str, CpuTime | Unknown | Exception] = field(default_factory=dict)
    run: str = "op1"
    asked: list[Sequence[str]] = field(default_factory=list)
    reaches: int = 99
    """How many it can measure in its time."""

    async def resource_usage(
        self, workspace_ids: Sequence[str], within: float
    ) -> dict[str, ResourceUsage | Unknown]:
        self.asked.append(workspace_ids)
        found: dict[str, ResourceUsage | Unknown] = {}
        for name in workspace_ids[: self.reaches]:
            cpu = self.cpu.get(name, CpuTime(0, None))
            if isinstance(cpu, Exception):
                raise cpu
            found[name] = ResourceUsage(self.run, cpu, Amount(100, 400), Amount(7, None))
        return found


@dataclass
class Sampling:
    """The workspace of a Stack, RUNNING since BEGIN, whose CPU use one leader after the other samples."""

    stack: Stack
    counters: Counters
    now: datetime = BEGIN
    used: float = 0.0

    def __post_init__(self) -> None:
        self.become_leader()

    def become_leader(self) -> None:
        runtime: Any = self.counters
        self.sampler = UsageSampler(
            self.stack.database,
            runtime,
            UsageSamples(self.stack.redis),
            lambda: FreeSpace(1 << 30),
            DEFAULTS,
            lambda: self.now,
        )

    async def sample(self) -> None:
        self.counters.cpu[self.stack.workspace_id] = CpuTime(self.used, 2.0)
        await self.sampler.tick()

    async def burn(self, minutes: int, cores: float = 1.0) -> None:
        """Let minutes pass, with a sample and a cycle of the TTL runner in each."""
        for _ in range(minutes):
            self.now += MINUTE
            self.used += 60 * cores
            await self.sample()
            await self.stack.tick(self.now)

    async def desired(self) -> DesiredState:
        return (await self.stack.row()).desired_state

    async def hold(self) -> Any:
        async with self.stack.engine.connect() as conn:
            return (await conn.execute(select(cpu_holds))).one_or_none()


@pytest.fixture
async def sampling(awake_stack: Stack) -> Sampling:
    await awake_stack.change(awake_cpu_percent=50)
    made = Sampling(awake_stack, Counters())
    await made.sample()
    return made


async def test_cpu_use_holds_and_the_ttl_counts_from_its_end(sampling: Sampling) -> None:
    await sampling.burn(120)
    assert await sampling.desired() is DesiredState.RUNNING
    assert (await sampling.hold()).percent == pytest.approx(100)
    await sampling.burn(5, cores=0)
    assert await sampling.hold() is None, "five minutes at 100 %, and five at 0 %, are not more than 50 %"
    ended = sampling.now
    assert (await sampling.stack.row()).holds_changed_at == ended
    await sampling.burn(int(TTL / MINUTE) - 1, cores=0)
    assert await sampling.desired() is DesiredState.RUNNING
    await sampling.burn(1, cores=0)
    assert await sampling.desired() is DesiredState.STANDBY
    assert sampling.now == ended + TTL


@pytest.mark.parametrize("own", [None, 0, 100, 101], ids=["default", "off", "as much", "more"])
async def test_no_more_cpu_use_than_was_set_holds_nothing(sampling: Sampling, own: int | None) -> None:
    await sampling.stack.change(awake_cpu_percent=own)
    await sampling.burn(int(TTL / MINUTE))
    assert await sampling.hold() is None
    assert await sampling.desired() is DesiredState.STANDBY


async def test_turning_it_off_ends_the_hold_with_the_next_sample(sampling: Sampling) -> None:
    await sampling.burn(30)
    assert await sampling.hold() is not None
    await sampling.stack.change(awake_cpu_percent=0)
    await sampling.burn(1)
    assert await sampling.hold() is None
    assert (await sampling.stack.row()).holds_changed_at == sampling.now


async def test_a_measurement_only_renews_the_hold_and_changes_no_row(sampling: Sampling) -> None:
    """Otherwise every sample would wake the controller and every event stream."""
    await sampling.burn(20)
    before, hold = await sampling.stack.row(), await sampling.hold()
    await sampling.burn(10)
    after = await sampling.hold()
    assert (await sampling.stack.row()).version == before.version
    assert after.began_at == hold.began_at and after.measured_at == hold.measured_at + 10 * MINUTE


async def test_a_new_leader_goes_on_with_the_samples_of_the_one_before(sampling: Sampling) -> None:
    """And a time without any leader is in the counter."""
    await sampling.burn(20, cores=0.55)
    sampling.now += 20 * MINUTE
    sampling.used += 20 * 60 * 0.55
    sampling.become_leader()
    await sampling.sample()
    assert (await sampling.hold()).percent == pytest.approx(55)


async def test_a_leader_without_redis_measures_on_and_reads_it_later(
    sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sampling.burn(20, cores=0.55)

    async def fail(_self: UsageSamples, _given: object) -> Any:
        raise RedisDown("it is down")

    with monkeypatch.context() as patch:
        for name in ("append", "read"):
            patch.setattr(UsageSamples, name, fail)
        sampling.become_leader()
        for _ in range(3):
            sampling.now += MINUTE
            sampling.used += 60 * 0.55
            await sampling.sample()
    await sampling.burn(1, cores=0.55)
    assert (await sampling.hold()).percent == pytest.approx(55)


async def test_cpu_use_that_cannot_be_measured_any_longer_holds_for_five_minutes(sampling: Sampling) -> None:
    await sampling.burn(20)
    measured = sampling.now
    for trouble in (Unknown("no counter"), RuntimeUnobservable("the engine does not answer")):
        sampling.counters.cpu[sampling.stack.workspace_id] = trouble
        sampling.now += MINUTE
        await sampling.sampler.tick()
        assert (await sampling.hold()).measured_at == measured
    sampling.now = measured + SEEN_WITHIN
    await sampling.sampler.tick()
    assert await sampling.hold() is None
    assert (await sampling.stack.row()).holds_changed_at == measured + SEEN_WITHIN
    due = measured + SEEN_WITHIN + TTL
    assert await sampling.stack.tick(due - MINUTE) is DesiredState.RUNNING
    assert await sampling.stack.tick(due) is DesiredState.STANDBY


async def test_the_hold_of_a_workspace_that_no_longer_runs_is_removed(sampling: Sampling) -> None:
    await sampling.burn(20)
    await sampling.stack.change(phase=Phase.STANDBY.value, desired_state=DesiredState.STANDBY.value)
    sampling.now += SEEN_WITHIN
    await sampling.sampler.tick()
    assert await sampling.hold() is None


async def test_a_workspace_that_is_about_to_stop_is_not_held(sampling: Sampling) -> None:
    await sampling.stack.change(desired_state=DesiredState.STANDBY.value)
    await sampling.burn(10)
    assert await sampling.hold() is None


async def test_a_restart_begins_a_new_average(sampling: Sampling) -> None:
    await sampling.burn(20)
    sampling.counters.run, sampling.used = "op2", 0.0
    await sampling.burn(2)
    assert await sampling.hold() is None


async def test_cpu_use_that_begins_while_a_ttl_fires_wins(sampling: Sampling) -> None:
    sampling.now = BEGIN + HOUR
    sampling.used = HOUR.total_seconds()
    sampling.stack.database.between = sampling.sample
    assert await sampling.stack.tick(sampling.now) is DesiredState.RUNNING


async def test_cpu_use_keeps_a_workspace_awake_at_most_for_the_limit(sampling: Sampling) -> None:
    sampling.now = BEGIN + LIMIT
    sampling.used = LIMIT.total_seconds()
    await sampling.sample()
    await sampling.burn(int(TTL / MINUTE) - 1)
    assert await sampling.desired() is DesiredState.RUNNING
    await sampling.burn(1)
    assert await sampling.hold() is not None
    assert await sampling.desired() is DesiredState.STANDBY


async def test_what_was_not_reached_comes_first_in_the_next_round(sampling: Sampling) -> None:
    first = sampling.stack.workspace_id
    async with sampling.stack.engine.begin() as conn:
        made = await gate.create(
            conn, owner_id="u1", name="two", description="", image_ref="code-server", standby_ttl=None,
            archive_ttl=None, desired=DesiredState.RUNNING, actor="u1", limits=Limits(9, 9),
            backends=BACKENDS, now=BEGIN,
        )  # fmt: skip
    await sampling.stack.change(phase=Phase.RUNNING.value)
    sampling.counters.reaches = 1
    sampling.counters.cpu[made.id] = Unknown("it never answers in time")
    for _ in range(3):
        sampling.now += MINUTE
        await sampling.sample()
    firsts = [asked[0] for asked in sampling.counters.asked]
    assert firsts == [first, made.id, first, made.id], "one that hangs does not use up every round"


async def test_the_samples_are_kept_in_redis(sampling: Sampling, redis_url: str) -> None:
    await sampling.burn(3, cores=0.5)
    async with Redis.from_url(redis_url) as redis:
        samples = (await UsageSamples(redis).read([sampling.stack.workspace_id]))[sampling.stack.workspace_id]
    assert [sample.cpu_seconds for sample in samples] == [0, 30, 60, 90]
    assert {sample.free_bytes for sample in samples} == {1 << 30}
    assert {(sample.memory_bytes, sample.processes_limit) for sample in samples} == {(100, None)}


WINDOW = timedelta(seconds=6)
SHORT_TTL = timedelta(seconds=10)


async def test_a_workspace_that_burns_cpu_stays_awake_and_stands_by_in_time_after_it(
    stack: CoordinatorStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real workspace, a whole coordinator, and a short window."""
    monkeypatch.setattr(awake, "CPU_WINDOW", WINDOW)
    monkeypatch.setattr(leadership_loop, "SAMPLE_EVERY", timedelta(seconds=0.5))
    ttl = int(SHORT_TTL.total_seconds())
    await stack.start(stack.with_settings(ttl_standby_seconds=ttl, awake_cpu_percent=5))
    name = await stack.create(image="burner")
    begun = (await stack.until_phase(name, Phase.RUNNING)).phase_changed_at

    async def measured_at() -> datetime | None:
        async with stack.engine.connect() as conn:
            found: datetime | None = await conn.scalar(select(cpu_holds.c.measured_at))
            return found

    await eventually(
        measured_at,
        "CPU use to hold it for long",
        lambda at: at is not None and at > begun + 2 * SHORT_TTL,
    )
    row = await stack.get(name)
    assert (row.phase, row.desired_state) == (Phase.RUNNING, DesiredState.RUNNING)
    (await stack.home(name) / "done").touch()
    stopped = await stack.until(name, lambda row: row.desired_state is DesiredState.STANDBY)
    assert stopped.holds_changed_at is not None
    timeline = await stack.timeline(name)
    assert any("nor kept awake since" in entry for entry in timeline), timeline
    assert await measured_at() is None
    await stack.until_phase(name, Phase.STANDBY)


def test_the_window_is_ten_minutes() -> None:
    assert CPU_WINDOW == 10 * MINUTE
