"""Holds: what keeps a workspace awake, until when, and the sentence about it."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from codehub.domain.awake import NO_HOLDS, SEEN_WITHIN, Command, CpuHold, Holds, Lease, awake_at
from codehub.domain.standby import Standby, StandbyCode, period, standby
from codehub.domain.states import DesiredState, Operation, Phase
from codehub.domain.ttl import Expiry, TtlDefaults, awake_cpu_percent, expired, extended, standby_at
from codehub.domain.workspace import Workspace
from tests.unit.domain.builders import NOW, workspace

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
TTL = timedelta(seconds=600)
LIMIT = timedelta(hours=72)
DEFAULTS = TtlDefaults(standby=600, archive=1800, max_awake=int(LIMIT.total_seconds()))
NO_LIMIT = replace(DEFAULTS, max_awake=0)


def running(**given: Any) -> Workspace:
    """Return a RUNNING workspace that was last used a day ago, by a person."""
    fields = {
        "phase": Phase.RUNNING,
        "desired_state": DesiredState.RUNNING,
        "last_access_at": NOW - DAY,
        "person_access_at": NOW - DAY,
        "phase_changed_at": NOW - 2 * DAY,
    }
    return workspace(**{**fields, **given})


def command(began: timedelta = HOUR, seen: timedelta = SECOND, timeout: timedelta | None = None) -> Command:
    """Return a command that began and was seen so long ago."""
    return Command(NOW - began, NOW - seen, timeout)


def lease(until: timedelta, reason: str = "nightly build") -> Lease:
    return Lease("l1", "w1", "u1", "ci", reason, NOW - HOUR, NOW + until)


def cpu(measured: timedelta = SECOND, percent: float = 83.9) -> CpuHold:
    """Return CPU use that began an hour ago and was measured so long ago."""
    return CpuHold(percent, 50, NOW - HOUR, NOW - measured)


def expiry(
    item: Workspace, holds: Holds = NO_HOLDS, now: datetime = NOW, defaults: TtlDefaults = DEFAULTS
) -> Expiry | None:
    return expired(item, defaults, now, now, awake_at(holds, now))


def explained(item: Workspace, holds: Holds = NO_HOLDS, defaults: TtlDefaults = DEFAULTS) -> Standby:
    """Return the explanation, which names the same time as `standby_at`."""
    awake = awake_at(holds, NOW)
    found = standby(item, defaults, awake)
    assert found is not None
    assert found.at == standby_at(item, defaults, awake)
    assert (found.at is not None and found.at <= NOW) == (expiry(item, holds, NOW, defaults) is not None)
    return found


def test_a_running_command_holds() -> None:
    assert expiry(running()) is not None
    assert expiry(running(), Holds((command(),))) is None


@pytest.mark.parametrize(
    ("seen", "held"), [(SEEN_WITHIN - SECOND, True), (SEEN_WITHIN, False), (SEEN_WITHIN + SECOND, False)]
)
def test_a_command_holds_while_it_was_seen_within_five_minutes(seen: timedelta, held: bool) -> None:
    awake = awake_at(Holds((command(seen=seen),)), NOW)
    assert bool(awake.commands) is held


def test_the_ttl_counts_from_five_minutes_after_a_command_was_last_seen() -> None:
    holds = Holds((command(seen=timedelta(0)),))
    due = NOW + SEEN_WITHIN + TTL
    assert expiry(running(), holds, due - SECOND) is None
    assert expiry(running(), holds, due) is not None


@pytest.mark.parametrize(
    ("timeout", "held"), [(HOUR + SECOND, True), (HOUR, False), (HOUR - SECOND, False), (None, True)]
)
def test_a_command_holds_at_most_for_its_timeout(timeout: timedelta | None, held: bool) -> None:
    awake = awake_at(Holds((command(began=HOUR, timeout=timeout),)), NOW)
    assert bool(awake.commands) is held


def test_the_ttl_counts_from_the_timeout_of_a_command_that_is_still_seen() -> None:
    item, late = running(), NOW + HOUR
    holds = Holds((replace(command(timeout=HOUR + MINUTE), seen_at=late),))
    due = NOW + MINUTE + TTL
    assert expiry(item, holds, due - SECOND) is None
    assert expiry(item, holds, due) is not None


def test_a_lease_holds_until_it_expires_and_the_ttl_counts_from_then() -> None:
    item, holds = running(), Holds((), (lease(MINUTE), lease(HOUR)))
    assert awake_at(holds, NOW + HOUR - SECOND).lease is not None
    assert awake_at(holds, NOW + HOUR).lease is None
    assert expiry(item, holds, NOW + HOUR + TTL - SECOND) is None
    assert expiry(item, holds, NOW + HOUR + TTL) is not None


def test_a_build_that_has_ended_leaves_time_to_read_its_result() -> None:
    item = running(holds_changed_at=NOW)
    assert expiry(item, NO_HOLDS, NOW + TTL - SECOND) is None
    stops = expiry(item, NO_HOLDS, NOW + TTL)
    assert stops is not None
    assert "nor kept awake since 2026-03-01" in stops.sentence


@pytest.mark.parametrize(
    ("measured", "held"), [(SEEN_WITHIN - SECOND, True), (SEEN_WITHIN, False), (SEEN_WITHIN + SECOND, False)]
)
def test_cpu_use_holds_while_it_was_measured_within_five_minutes(measured: timedelta, held: bool) -> None:
    assert (awake_at(Holds(cpu=cpu(measured)), NOW).cpu is not None) is held


def test_the_ttl_counts_from_five_minutes_after_cpu_use_was_last_measured() -> None:
    holds = Holds(cpu=cpu(timedelta(0)))
    due = NOW + SEEN_WITHIN + TTL
    assert expiry(running(), holds, due - SECOND) is None
    assert expiry(running(), holds, due) is not None


@pytest.mark.parametrize(
    ("own", "default", "found"), [(None, 0, 0), (None, 70, 70), (0, 70, 0), (30, 70, 30)]
)
def test_the_cpu_use_that_holds_is_its_own_or_the_default(own: int | None, default: int, found: int) -> None:
    assert awake_cpu_percent(own, replace(DEFAULTS, awake_cpu_percent=default)) == found


@pytest.mark.parametrize(
    "holds",
    [Holds((command(),)), Holds((), (lease(DAY),)), Holds(cpu=cpu())],
    ids=["command", "lease", "cpu"],
)
def test_programs_keep_a_workspace_awake_at_most_for_the_limit(holds: Holds) -> None:
    def left(without_person: timedelta, defaults: TtlDefaults = DEFAULTS) -> Expiry | None:
        item = running(person_access_at=NOW - without_person, phase_changed_at=NOW - 30 * DAY)
        return expiry(item, holds, NOW, defaults)

    assert left(LIMIT + TTL - SECOND) is None
    stops = left(LIMIT + TTL)
    assert stops is not None and stops.sentence.startswith("No person has used it since 2026-02-26")
    assert left(30 * DAY, NO_LIMIT) is None


def test_use_by_programs_alone_keeps_a_workspace_awake_at_most_for_the_limit() -> None:
    item = running(last_access_at=NOW, person_access_at=NOW - LIMIT - TTL, phase_changed_at=NOW - 30 * DAY)
    assert expiry(item) is not None
    assert expiry(replace(item, person_access_at=NOW - LIMIT)) is None, "a person's use starts it again"
    assert expiry(replace(item, phase_changed_at=NOW - LIMIT)) is None, "it counts from RUNNING"
    assert expiry(replace(item, person_access_at=None)) is None, "an older CodeHub recorded one use only"
    assert expiry(item, defaults=NO_LIMIT) is None


def test_a_ttl_of_0_never_fires_not_even_at_the_limit() -> None:
    item = running(standby_ttl_seconds=0, person_access_at=NOW - 30 * DAY, phase_changed_at=NOW - 30 * DAY)
    assert expiry(item, Holds((command(),))) is None
    assert explained(item).code is StandbyCode.NEVER


def test_keep_until_holds_beyond_the_limit() -> None:
    """It is a person's own act."""
    item = running(person_access_at=NOW - 30 * DAY, phase_changed_at=NOW - 30 * DAY, keep_until=NOW + HOUR)
    assert expiry(item, Holds((command(),)), NOW + HOUR - SECOND) is None
    assert expiry(item, Holds((command(seen=-HOUR),)), NOW + HOUR) is not None


def test_a_program_extends_no_further_than_it_may_keep_it_awake() -> None:
    since = NOW - LIMIT + HOUR
    item = running(person_access_at=since, phase_changed_at=since)
    assert extended(item, DEFAULTS, 5 * HOUR, NOW, by_person=False) == NOW + HOUR
    assert extended(item, DEFAULTS, 5 * HOUR, NOW) == NOW + 5 * HOUR
    kept = replace(item, keep_until=NOW + 3 * HOUR)
    assert extended(kept, DEFAULTS, 5 * HOUR, NOW, by_person=False) == NOW + 3 * HOUR


@pytest.mark.parametrize(
    "changes",
    [{"operation": Operation.STOPPING}, {"desired_state": DesiredState.STANDBY}],
    ids=["operation", "request"],
)
def test_no_limit_fires_during_an_operation_or_against_a_request(changes: dict[str, Any]) -> None:
    old = {"person_access_at": NOW - 30 * DAY, "phase_changed_at": NOW - 30 * DAY}
    assert expiry(running(**old), Holds((command(),))) is not None
    assert expiry(running(**old, **changes), Holds((command(),))) is None


def test_only_a_running_workspace_has_an_explanation() -> None:
    for phase in Phase:
        found = standby(running(phase=phase), DEFAULTS, awake_at(NO_HOLDS, NOW))
        assert (found is None) is (phase is not Phase.RUNNING)


def test_the_sentences() -> None:
    used = running(last_access_at=NOW - 2 * MINUTE, person_access_at=NOW - 2 * MINUTE)
    assert f"{NOW:%H:%M}" == "12:00"
    assert explained(used).reason == "Stops at 2026-03-01 12:08 UTC if unused."
    assert explained(running(standby_ttl_seconds=0)).reason == "Never stops when unused."
    assert explained(running(), Holds((command(),)), NO_LIMIT).reason == (
        "Running a command since 2026-03-01 11:00 UTC; stops 10 minutes after it ends."
    )
    two = Holds((command(timeout=2 * HOUR), command(began=MINUTE, timeout=HOUR)))
    assert explained(running(), two).reason == (
        "Running 2 commands since 2026-03-01 11:00 UTC; stops 10 minutes after the last one ends, "
        "at the latest at 2026-03-01 13:10 UTC."
    )
    both = Holds((command(),), (lease(HOUR),))
    assert "not before 2026-03-01 13:10 UTC" in explained(running(), both).reason
    assert explained(running(), Holds((), (lease(HOUR),))).reason == (
        "Kept awake by a lease until 2026-03-01 13:00 UTC: nightly build. "
        "Stops at 2026-03-01 13:10 UTC if unused."
    )
    short = command(timeout=HOUR + MINUTE)
    assert "A command runs as well." in explained(running(), Holds((short,), (lease(HOUR),))).reason
    assert explained(running(), Holds(cpu=cpu())).reason == (
        "Kept awake by its CPU use since 2026-03-01 11:00 UTC: 83 % of a core on average over 10 minutes. "
        "Stops 10 minutes after that is no longer above 50 %, at the latest at 2026-03-03 12:10 UTC."
    )
    assert explained(running(), Holds(cpu=cpu()), NO_LIMIT).reason.endswith("no longer above 50 %.")
    assert explained(running(), Holds((short,), (lease(HOUR),), cpu())).reason.endswith(
        "A command runs as well."
    )
    beside = explained(running(), Holds((command(),), cpu=cpu())).reason
    assert beside.startswith("Running a command") and beside.endswith("Its CPU use keeps it awake as well.")
    assert explained(running(keep_until=NOW + HOUR)).reason.startswith(
        "Kept running until 2026-03-01 13:00 UTC"
    )
    limited = running(person_access_at=NOW - LIMIT, phase_changed_at=NOW - 30 * DAY)
    assert explained(limited, Holds((command(),))).reason.endswith("Stops at 2026-03-01 12:10 UTC.")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(600, "10 minutes"), (3600, "1 hour"), (90, "90 seconds"), (172_800, "2 days"), (1, "1 second")],
)
def test_periods(seconds: int, text: str) -> None:
    assert period(seconds) == text
