"""TTLs over every phase, desired state, operation, override, extension and boundary."""

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import product

import pytest

from codehub.domain.states import DesiredState, Operation, Phase
from codehub.domain.ttl import (
    LONGEST_EXTENSION,
    Expiry,
    TtlDefaults,
    archive_at,
    extended,
    known_until,
    standby_at,
)
from codehub.domain.ttl import expired as expired_knowing
from codehub.domain.workspace import Workspace
from tests.unit.domain.builders import NOW, RESTORE_OLD, workspace

DEFAULTS = TtlDefaults(standby=600, archive=1800)
SECOND = timedelta(seconds=1)
OWN = {None: "default", 0: "never", 60: "own"}


def expired(item: Workspace, defaults: TtlDefaults, now: datetime) -> Expiry | None:
    """Return the expiry if every use is known until now."""
    return expired_knowing(item, defaults, now, now)


def deadline(own: int | None, default: int, since: datetime, keep_until: datetime | None) -> datetime | None:
    ttl = default if own is None else own
    if ttl == 0:
        return None
    natural = since + timedelta(seconds=ttl)
    return natural if keep_until is None or keep_until < natural else keep_until


@pytest.mark.parametrize("phase", ["STANDBY", "RUNNING"])
def test_nothing_expires_while_a_request_is_pending(phase: str) -> None:
    item = workspace(phase=Phase(phase), desired_state=DesiredState(phase))
    assert expired(item, DEFAULTS, NOW) is not None
    assert expired(replace(item, request=RESTORE_OLD), DEFAULTS, NOW) is None


@pytest.mark.parametrize("phase", Phase)
def test_deadlines(phase: Phase) -> None:
    for own, default, keep in product(OWN, (0, 600), (None, -30, 30, 7200)):
        keep_until = None if keep is None else NOW + timedelta(seconds=keep)
        item = workspace(
            phase=phase,
            standby_ttl_seconds=own,
            archive_ttl_seconds=own,
            keep_until=keep_until,
            last_access_at=NOW - timedelta(seconds=100),
            phase_changed_at=NOW - timedelta(seconds=200),
        )
        defaults = TtlDefaults(default, default)
        standby = deadline(own, default, item.last_access_at, keep_until)
        archive = deadline(own, default, item.phase_changed_at, keep_until)
        assert standby_at(item, defaults) == (standby if phase is Phase.RUNNING else None)
        assert archive_at(item, defaults) == (archive if phase is Phase.STANDBY else None)


@pytest.mark.parametrize("phase", Phase)
def test_a_ttl_fires_only_in_the_desired_state_without_an_operation(phase: Phase) -> None:
    lower = {Phase.RUNNING: DesiredState.STANDBY, Phase.STANDBY: DesiredState.ARCHIVED}
    for desired, operation in product(DesiredState, Operation):
        item = workspace(phase=phase, desired_state=desired, operation=operation)
        outcome = expired(item, DEFAULTS, NOW + timedelta(days=365))
        if operation is Operation.NONE and desired.value == phase.value and phase in lower:
            assert outcome is not None
            assert outcome.desired is lower[phase]
            assert "2026-03-01" in outcome.sentence
        else:
            assert outcome is None


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.STANDBY])
@pytest.mark.parametrize("own", OWN, ids=OWN.values())
@pytest.mark.parametrize("keep", [None, -3600, 0, 5000])
@pytest.mark.parametrize("deleted", [False, True])
def test_a_ttl_fires_at_its_deadline_and_not_a_second_before(
    phase: Phase, own: int | None, keep: int | None, deleted: bool
) -> None:
    item = workspace(
        phase=phase,
        desired_state=DesiredState(phase.value),
        last_access_at=NOW,
        phase_changed_at=NOW,
        standby_ttl_seconds=own,
        archive_ttl_seconds=own,
        keep_until=None if keep is None else NOW + timedelta(seconds=keep),
        deleted_at=NOW if deleted else None,
    )
    due = (standby_at if phase is Phase.RUNNING else archive_at)(item, DEFAULTS)
    if due is None or deleted:
        assert expired(item, DEFAULTS, NOW + timedelta(days=365)) is None
        return
    assert expired(item, DEFAULTS, due - SECOND) is None
    assert expired(item, DEFAULTS, due) is not None
    if item.keep_until is not None:
        assert due >= item.keep_until, "never before keep_until"


def test_a_start_slower_than_the_ttl_is_not_stopped_as_soon_as_it_runs() -> None:
    requested = NOW - timedelta(seconds=9999)
    item = workspace(
        phase=Phase.RUNNING,
        desired_state=DesiredState.RUNNING,
        last_access_at=requested,
        phase_changed_at=NOW,
    )
    assert standby_at(item, DEFAULTS) == NOW + timedelta(seconds=DEFAULTS.standby)
    assert expired(item, DEFAULTS, NOW + timedelta(seconds=DEFAULTS.standby) - SECOND) is None
    assert expired(item, DEFAULTS, NOW + timedelta(seconds=DEFAULTS.standby)) is not None


def test_a_running_workspace_expires_by_its_use_and_a_paused_one_by_its_pause() -> None:
    long_ago = NOW - timedelta(seconds=9999)
    for phase in (Phase.RUNNING, Phase.STANDBY):
        item = workspace(
            phase=phase,
            desired_state=DesiredState(phase.value),
            last_access_at=long_ago,
            phase_changed_at=long_ago,
        )
        assert expired(item, DEFAULTS, NOW) is not None
        assert (expired(replace(item, last_access_at=NOW), DEFAULTS, NOW) is None) == (phase is Phase.RUNNING)
        assert expired(replace(item, phase_changed_at=NOW), DEFAULTS, NOW) is None


def test_a_workspace_is_idle_only_if_its_use_is_known_until_the_deadline() -> None:
    long_ago = NOW - timedelta(seconds=9999)
    running = workspace(
        phase=Phase.RUNNING,
        desired_state=DesiredState.RUNNING,
        last_access_at=long_ago,
        phase_changed_at=long_ago,
    )
    due = standby_at(running, DEFAULTS)
    assert due is not None
    assert expired_knowing(running, DEFAULTS, NOW, None) is None
    assert expired_knowing(running, DEFAULTS, NOW, due - SECOND) is None
    assert expired_knowing(running, DEFAULTS, NOW, due) is not None
    paused = replace(running, phase=Phase.STANDBY, desired_state=DesiredState.STANDBY)
    assert expired_knowing(paused, DEFAULTS, NOW, None) is not None, "a paused workspace is not in use"


def test_uses_are_known_until_the_oldest_report() -> None:
    minute = timedelta(minutes=1)
    assert known_until([], NOW, minute) == NOW
    assert known_until([10 * SECOND, 30 * SECOND], NOW, minute) == NOW - 30 * SECOND
    assert known_until([10 * SECOND, minute], NOW, minute) == NOW - minute
    assert known_until([10 * SECOND, minute + SECOND], NOW, minute) is None


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.STANDBY, Phase.ARCHIVED])
@pytest.mark.parametrize("own", OWN, ids=OWN.values())
@pytest.mark.parametrize("keep", [None, -3600, 5000])
def test_an_extension_adds_to_the_present_deadline_and_never_shortens_it(
    phase: Phase, own: int | None, keep: int | None
) -> None:
    hour = timedelta(hours=1)
    item = workspace(
        phase=phase,
        desired_state=DesiredState(phase.value),
        last_access_at=NOW,
        phase_changed_at=NOW,
        standby_ttl_seconds=own,
        archive_ttl_seconds=own,
        keep_until=None if keep is None else NOW + timedelta(seconds=keep),
    )
    deadline = standby_at(item, DEFAULTS) or archive_at(item, DEFAULTS)
    once = replace(item, keep_until=extended(item, DEFAULTS, hour, NOW))
    assert once.keep_until is not None
    if deadline is not None:
        assert once.keep_until == deadline + hour
    twice = extended(once, DEFAULTS, hour, NOW)
    assert twice == once.keep_until + hour
    assert extended(once, DEFAULTS, 30 * 24 * hour, NOW) == NOW + LONGEST_EXTENSION
