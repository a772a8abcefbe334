"""Garbage collection of volumes: leftovers, grace times, and no home in use."""

from dataclasses import replace
from datetime import timedelta

import pytest

from codehub.domain.gc import ArchiveHolder, GcRules
from codehub.domain.states import Phase
from codehub.domain.volume_leftovers import HOME, Leftover, select_leftovers_to_remove
from tests.unit.domain.builders import ID, KEY, NOW

RULES = GcRules(orphan_grace=timedelta(hours=2), retention=timedelta(days=7))
LIVING = ArchiveHolder(KEY, None, Phase.STANDBY, None, None, frozenset())
TRASH = replace(LIVING, phase=Phase.DELETED, deleted_at=NOW)
PURGED = replace(TRASH, purged_at=NOW)
ERROR = replace(LIVING, phase=Phase.ERROR)
LEFT_ALONE = replace(PURGED, of_other_backend=True)
SECOND = timedelta(seconds=1)
HOURS, DAYS, NEVER = RULES.orphan_grace, RULES.retention, None


def leftover(name: str, workspace_id: str = ID) -> Leftover:
    return Leftover(f"users/u/workspaces/{workspace_id}/home", workspace_id, name)


@pytest.mark.parametrize(
    ("name", "holder", "grace"),
    [
        (HOME, LIVING, NEVER),
        (HOME, ERROR, NEVER),
        (HOME, TRASH, NEVER),
        (HOME, PURGED, HOURS),
        (HOME, None, DAYS),
        (".aside-op", LIVING, DAYS),
        (".aside-op", ERROR, NEVER),
        (".aside-op", TRASH, DAYS),
        (".aside-op", PURGED, HOURS),
        (".aside-op", None, DAYS),
        (".staging-op", LIVING, HOURS),
        (".staging-op", ERROR, HOURS),
        (".staging-op", PURGED, HOURS),
        (".staging-op", None, DAYS),
        (".deleted-op", LIVING, HOURS),
        (".deleted-op", None, DAYS),
        (HOME, LEFT_ALONE, NEVER),
        (".staging-op", LEFT_ALONE, NEVER),
    ],
)
def test_leftovers_wait_for_their_grace(
    name: str, holder: ArchiveHolder | None, grace: timedelta | None
) -> None:
    item = leftover(name)
    holders = {"another": LIVING} if holder is None else {ID: holder}
    first = select_leftovers_to_remove([item], holders, {}, RULES, NOW)
    assert first.remove == ()
    assert first.first_seen == ({} if grace is None else {item.key: NOW})
    long = grace or timedelta(days=999)
    early = select_leftovers_to_remove([item], holders, first.first_seen, RULES, NOW + long - SECOND)
    assert early.remove == ()
    late = select_leftovers_to_remove([item], holders, first.first_seen, RULES, NOW + long)
    assert late.remove == (() if grace is None else (item,))


def test_an_empty_database_counts_as_lost_and_no_home_is_removed() -> None:
    item = leftover(HOME)
    first = select_leftovers_to_remove([item], {}, {}, RULES, NOW)
    late = select_leftovers_to_remove([item], {}, first.first_seen, RULES, NOW + 2 * DAYS)
    assert "has no workspaces" in (late.alarm or "")
    assert late.remove == ()


def test_many_unknown_homes_raise_an_alarm_and_nothing_is_removed() -> None:
    homes = [leftover(HOME, f"w{number}") for number in range(20)]
    holders = {item.workspace_id: LIVING for item in homes[3:]}
    first = select_leftovers_to_remove(homes, holders, {}, RULES, NOW)
    found = select_leftovers_to_remove(homes, holders, first.first_seen, RULES, NOW + 2 * DAYS)
    assert found.alarm is not None
    assert "3 of 20 homes" in found.alarm
    assert found.remove == ()
    fewer = select_leftovers_to_remove(
        homes, holders | {"w0": LIVING}, first.first_seen, RULES, NOW + 2 * DAYS
    )
    assert (fewer.alarm, len(fewer.remove)) == (None, 2)
