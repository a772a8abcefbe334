"""CPU use between samples, its average, and the hold that follows from it."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codehub.domain.awake import CPU_WINDOW, CpuHold
from codehub.domain.disk import HomeSize
from codehub.domain.observation import Unknown
from codehub.domain.resource_usage import (
    CURRENT_WITHIN,
    Amount,
    CpuTime,
    ResourceUsage,
    UsageSample,
    average_cpu_percent,
    cpu_percent,
    current_sample,
    needed_for_average,
    next_cpu_hold,
    plausible_count,
    to_sample,
)
from tests.unit.domain.builders import NOW

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)


def sample(minutes: float, cpu_seconds: float | None, run: str = "op1") -> UsageSample:
    return UsageSample(NOW + minutes * MINUTE, run, cpu_seconds)


def steady(cores: float, minutes: int, begin: int = 0) -> list[UsageSample]:
    return [sample(minute, 60 * cores * (minute - begin)) for minute in range(begin, minutes + 1)]


def test_cpu_use_is_what_the_counter_has_gained() -> None:
    assert cpu_percent(sample(0, 100), sample(1, 190)) == 150
    assert cpu_percent(sample(0, 100), sample(1, 100)) == 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (sample(0, 100), sample(1, 99)),
        (sample(0, 100), sample(1, 190, run="op2")),
        (sample(0, None), sample(1, 190)),
        (sample(0, 100), sample(1, None)),
        (sample(0, 100), sample(0, 190)),
        (sample(1, 100), sample(0, 190)),
        (sample(0, 100), sample(1, 1e15)),
    ],
    ids=["less", "another run", "none before", "none after", "no time", "clock set back", "implausible"],
)
def test_cpu_use_that_cannot_be_right_is_unknown(before: UsageSample, after: UsageSample) -> None:
    assert cpu_percent(before, after) is None
    assert average_cpu_percent([before, after]) == 0


@pytest.mark.parametrize(
    ("samples", "average"),
    [
        ([], 0),
        ([sample(0, 5000)], 0),
        (steady(0.5, 10), 50),
        (steady(0.5, 60), 50),
        (steady(1, 5), 50),
        (steady(1, 10, begin=8), 20),
        ([sample(0, 0), sample(20, 1200)], 100),
        ([sample(0, 0), sample(20, 1200), sample(25, 1200)], 50),
        ([*steady(4, 20), sample(21, 0, "op2"), sample(22, 60, "op2")], 10),
        ([sample(0, 0), sample(4, None), sample(8, 480), sample(10, 600)], 20),
    ],
    ids=[
        "none",
        "one",
        "steady",
        "an hour",
        "half the time",
        "short",
        "a gap",
        "partly",
        "restart",
        "unknown",
    ],
)
def test_the_average_counts_unmeasured_time_as_unused(samples: list[UsageSample], average: float) -> None:
    assert average_cpu_percent(samples) == pytest.approx(average)


@given(st.lists(st.tuples(st.floats(0.01, 30), st.floats(0, 8)), min_size=2, max_size=40))
def test_the_average_needs_only_some_samples(steps: list[tuple[float, float]]) -> None:
    at = used = 0.0
    samples = []
    for minutes, cores in steps:
        at, used = at + minutes, used + 60 * minutes * cores
        samples.append(sample(at, used))
    needed = needed_for_average(samples)
    assert average_cpu_percent(needed) == pytest.approx(average_cpu_percent(samples))
    assert all(later.at > samples[-1].at - CPU_WINDOW for _, later in pairwise(needed))


def held(percent: float = 80, measured: int = -1) -> CpuHold:
    return CpuHold(percent, 50, NOW - timedelta(hours=1), NOW + measured * MINUTE)


def test_more_cpu_use_than_the_owner_has_set_begins_a_hold() -> None:
    assert next_cpu_hold(None, steady(0.5, 10), 50) is None
    found = next_cpu_hold(None, steady(0.6, 10), 50)
    assert found is not None
    assert (found.above_percent, found.began_at, found.measured_at) == (
        50, NOW + 10 * MINUTE, NOW + 10 * MINUTE,
    )  # fmt: skip
    assert found.percent == pytest.approx(60)


def test_a_hold_goes_on_with_each_measurement_and_ends_below() -> None:
    found = next_cpu_hold(held(), steady(0.6, 10), 50)
    assert found is not None and found.began_at == held().began_at
    assert found.measured_at == NOW + 10 * MINUTE
    assert next_cpu_hold(held(), steady(0.5, 10), 50) is None


def test_a_sample_without_cpu_time_leaves_the_hold_as_it_is() -> None:
    samples = [*steady(0.6, 10), sample(11, None)]
    assert next_cpu_hold(held(), samples, 50) == held()
    assert next_cpu_hold(None, samples, 50) is None


def test_0_turns_it_off_at_once() -> None:
    assert next_cpu_hold(None, steady(8, 10), 0) is None
    assert next_cpu_hold(held(), [*steady(8, 10), sample(11, None)], 0) is None


USAGE = ResourceUsage("op1", CpuTime(5, 2), Amount(100, 400), Amount(7, 512))


def test_a_sample_has_what_was_measured_and_the_home() -> None:
    found = to_sample(USAGE, HomeSize(30, 3), 1000, NOW)
    assert found == UsageSample(NOW, "op1", 5, 2, 100, 400, 7, 512, 30, 1000)


def test_a_sample_says_why_something_is_missing() -> None:
    unknown = replace(USAGE, cpu=Unknown("no CPU"), memory=Unknown("no memory"), processes=Unknown("none"))
    found = to_sample(unknown, None, None, NOW)
    assert found == UsageSample(
        NOW, "op1", cpu_reason="no CPU", memory_reason="no memory", processes_reason="none"
    )


@pytest.mark.parametrize(
    ("size", "quota", "disk", "free"),
    [
        (30, 0, 1000, 1000),
        (30, 100, 1000, 70),
        (30, 5000, 1000, 1000),
        (130, 100, 1000, 0),
        (30, 100, None, None),
    ],
)
def test_a_quota_limits_the_free_space_of_a_home(
    size: int, quota: int, disk: int | None, free: int | None
) -> None:
    assert to_sample(USAGE, HomeSize(size, 3, quota_bytes=quota), disk, NOW).free_bytes == free


def test_the_present_state_is_a_recent_sample_of_this_run() -> None:
    newest = sample(0, 1)
    began = NOW - timedelta(hours=1)
    assert current_sample([sample(-1, 0), newest], began, NOW) is newest
    assert current_sample([newest], began, NOW + CURRENT_WITHIN) is newest
    assert current_sample([newest], None, NOW) == "The workspace does not run, so it uses nothing."
    late = NOW + CURRENT_WITHIN + SECOND
    assert current_sample([newest], began, late) == (
        "The workspace has not been measured since 2026-03-01 12:00 UTC."
    )
    assert "since it started" in str(current_sample([], began, NOW))
    assert "has just started" in str(current_sample([newest], NOW + SECOND, NOW + MINUTE))


@pytest.mark.parametrize("value", [-1, 2**63, 1.5, True, "7", None, [7], float("nan")])
def test_a_count_from_outside_may_be_anything(value: object) -> None:
    assert plausible_count(value) is None


def test_a_plausible_count() -> None:
    assert [plausible_count(value) for value in (0, 7, 2**63 - 1)] == [0, 7, 2**63 - 1]
