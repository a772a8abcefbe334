"""Histories with programs keep the contracts of holds, and planted bugs break them (ADR 0037)."""

from dataclasses import replace
from datetime import datetime

import pytest

from codehub.coordinator import ttl_runner
from codehub.domain import ttl
from codehub.domain.awake import FOREVER, NOT_HELD, Awake, Holds, awake_at
from codehub.domain.workspace import Workspace
from tests.simulation.database import Gate
from tests.simulation.history import run
from tests.simulation.programs import Programs
from tests.simulation.test_planted_simulation import SEEDS, expect_violation, quiet_logs

__all__ = ["quiet_logs"]
HELD = "is stopped although a command keeps it awake|is stopped although a lease keeps it awake"


def test_programs_keep_workspaces_awake_and_not_for_too_long() -> None:
    for seed in SEEDS[:3]:
        run(seed, Programs)


def test_planted_a_command_that_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def leases_alone(holds: Holds, now: datetime) -> Awake:
        return awake_at(replace(holds, commands=()), now)

    monkeypatch.setattr(ttl_runner, "awake_at", leases_alone)
    expect_violation("is stopped although a command keeps it awake", Programs)


def test_planted_a_lease_that_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def commands_alone(holds: Holds, now: datetime) -> Awake:
        return awake_at(replace(holds, leases=()), now)

    monkeypatch.setattr(ttl_runner, "awake_at", commands_alone)
    expect_violation("is stopped although a lease keeps it awake", Programs)


def test_planted_a_stop_as_soon_as_a_hold_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of a build could not be read."""
    original = ttl.busy_until

    def busy_while_held(workspace: Workspace, awake: Awake) -> datetime:
        now_held = awake.commands or awake.lease is not None
        forgotten = replace(workspace, holds_changed_at=None)
        return original(workspace, awake) if now_held else original(forgotten, NOT_HELD)

    monkeypatch.setattr(ttl, "busy_until", busy_while_held)
    expect_violation(HELD, Programs)


def test_planted_programs_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ttl, "awake_limit", lambda workspace, defaults: FOREVER)
    expect_violation("programs keep it running for longer than they may", Programs)


def test_planted_a_limit_that_counts_use_by_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ttl, "without_person_since", lambda row: max(row.last_access_at, row.phase_changed_at)
    )
    expect_violation("programs keep it running for longer than they may", Programs)


def test_planted_a_hold_that_begins_without_its_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A TTL that was decided before would fire on a row that has not changed."""
    monkeypatch.setattr(Gate, "change_holds", lambda _self, _row, **_changes: None)
    expect_violation(HELD, Programs)
