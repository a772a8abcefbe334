"""Histories with CPU use keep the contracts of holds, and planted bugs break them (ADR 0039)."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import pytest

from codehub.coordinator import ttl_runner, usage_sampler
from codehub.domain import resource_usage, ttl
from codehub.domain.awake import FOREVER, Awake, CpuHold, Holds, awake_at
from codehub.domain.resource_usage import UsageSample
from tests.simulation.cpu_loads import CpuLoads
from tests.simulation.database import Gate
from tests.simulation.history import run
from tests.simulation.test_planted_simulation import SEEDS, expect_violation, quiet_logs

__all__ = ["quiet_logs"]


def test_cpu_use_keeps_workspaces_awake_and_not_for_too_long() -> None:
    for seed in SEEDS[:2]:
        events = "\n".join(run(seed, CpuLoads).events)
        assert "% CPU" in events and "uses little CPU" in events


def test_planted_cpu_use_that_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_cpu(holds: Holds, now: datetime) -> Awake:
        return awake_at(replace(holds, cpu=None), now)

    monkeypatch.setattr(ttl_runner, "awake_at", without_cpu)
    expect_violation("is stopped although its CPU use keeps it awake", CpuLoads)


def test_planted_cpu_use_that_holds_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    original = resource_usage.next_cpu_hold

    def never_ending(hold: CpuHold | None, samples: Sequence[UsageSample], above: int) -> CpuHold | None:
        after = original(hold, samples, above)
        return replace(hold, measured_at=samples[-1].at) if after is None and hold is not None else after

    monkeypatch.setattr(usage_sampler, "next_cpu_hold", never_ending)
    monkeypatch.setattr(ttl, "awake_limit", lambda workspace, defaults: FOREVER)
    expect_violation("keeps running although it uses no CPU", CpuLoads)


def test_planted_cpu_use_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ttl, "awake_limit", lambda workspace, defaults: FOREVER)
    expect_violation("for longer than CPU use may keep it awake", CpuLoads)


def test_planted_a_stop_as_soon_as_cpu_use_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of a build could not be read."""
    monkeypatch.setattr(Gate, "change_holds", lambda _self, _row, **_changes: None)
    expect_violation("is stopped although its CPU use keeps it awake", CpuLoads)
