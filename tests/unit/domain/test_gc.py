"""Garbage collection of archives: protections, grace times, and the mass-deletion guard."""

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import product

import pytest

from codehub.domain.archive_keys import archive_key, archive_op_id_of
from codehub.domain.gc import ArchiveHolder, GcRules, StoredArchive, protection, select_archives_to_remove
from codehub.domain.states import Phase
from tests.unit.domain.builders import ID, NOW

RULES = GcRules(orphan_grace=timedelta(hours=2), retention=timedelta(days=7))
SECOND = timedelta(seconds=1)
OP_IDS = [f"01ar000000000000000000000{number}" for number in range(5)]
KEYS = [archive_key(ID, op_id) for op_id in OP_IDS]
THIS = 2
"""The archive in question is the third of five, in order of age."""


def stored(number: int = THIS, workspace_id: str = ID) -> StoredArchive:
    op_id = f"01ar{number:022}"
    return StoredArchive(archive_key(workspace_id, op_id), workspace_id, op_id, 100, complete=True)


ITEM = StoredArchive(KEYS[THIS], ID, OP_IDS[THIS], 100, complete=True)
LIVING = ArchiveHolder(KEYS[3], OP_IDS[3], Phase.STANDBY, None, None, frozenset())
PRESENT = set(KEYS)


def test_an_older_archive_that_was_replaced_is_not_protected() -> None:
    assert protection(ITEM, LIVING, PRESENT, 0) is None


@pytest.mark.parametrize(
    ("holder", "reason"),
    [
        (replace(LIVING, archive_key=ITEM.key), "the archive of its workspace"),
        (replace(LIVING, archive_op_id=ITEM.archive_op_id), "last archive operation"),
        (replace(LIVING, phase=Phase.ERROR), "in ERROR"),
        (replace(LIVING, deleted_at=NOW, phase=Phase.DELETED), "grace period"),
        (replace(LIVING, deleted_at=NOW, phase=Phase.DELETING), "grace period"),
        (replace(LIVING, kept=frozenset({ITEM.key})), "left it behind"),
        (replace(LIVING, requested=ITEM.archive_op_id), "about to be restored"),
        (replace(LIVING, archive_key=KEYS[1]), "newer"),
        (replace(LIVING, of_other_backend=True), "another backend"),
        (replace(LIVING, of_other_backend=True, deleted_at=NOW, purged_at=NOW), "another backend"),
    ],
)
def test_each_protection_alone(holder: ArchiveHolder, reason: str) -> None:
    assert reason in (protection(ITEM, holder, PRESENT, 0) or "")


@pytest.mark.parametrize("kept", range(6))
def test_the_newest_archives_of_a_living_workspace_stay(kept: int) -> None:
    holder = replace(LIVING, archive_key=KEYS[4], archive_op_id=OP_IDS[4], recorded=frozenset(KEYS))
    rules = replace(RULES, archives_kept=kept, orphan_grace=timedelta(0))
    listed = [
        StoredArchive(key, ID, op_id, 1, complete=True) for key, op_id in zip(KEYS, OP_IDS, strict=True)
    ]
    removed = select_archives_to_remove(listed, {ID: holder}, {}, rules, NOW).remove
    assert [item.key for item in removed] == KEYS[: 5 - max(1, kept)]
    purged = replace(holder, deleted_at=NOW, purged_at=NOW, phase=Phase.DELETED)
    assert len(select_archives_to_remove(listed, {ID: purged}, {}, rules, NOW).remove) == len(KEYS)


def test_an_archive_that_is_incomplete_or_cannot_be_restored_takes_no_place_of_the_newest() -> None:
    holder = replace(LIVING, recorded=frozenset(KEYS))
    assert protection(ITEM, holder, PRESENT, 2) is None
    assert "newest" in (protection(ITEM, holder, PRESENT - {KEYS[4]}, 2) or "")
    assert "newest" in (protection(ITEM, replace(holder, recorded=PRESENT - {KEYS[4]}), PRESENT, 2) or "")


def test_an_archive_stays_while_the_one_that_replaced_it_is_not_seen() -> None:
    assert "missing" in (protection(ITEM, LIVING, PRESENT - {KEYS[3]}, 0) or "")


def test_every_combination_of_protections() -> None:
    keys: tuple[str | None, ...] = (None, KEYS[1], KEYS[THIS], KEYS[3])
    op_ids: tuple[str | None, ...] = (None, OP_IDS[1], OP_IDS[THIS], OP_IDS[3])
    times: tuple[datetime | None, ...] = (None, NOW)
    kept: tuple[frozenset[str], ...] = (frozenset(), frozenset({KEYS[0]}), frozenset({KEYS[THIS]}))
    presence = (PRESENT, {ITEM.key})
    for key, op_id, phase, deleted, purged, left, present in product(
        keys, op_ids, Phase, times, times, kept, presence
    ):
        if purged is not None and deleted is None:
            continue
        holder = ArchiveHolder(key, op_id, phase, deleted, purged, left)
        protected = purged is None and (
            deleted is not None
            or phase is Phase.ERROR
            or op_id == ITEM.archive_op_id
            or ITEM.key in left
            or (key is not None and archive_op_id_of(key) <= ITEM.archive_op_id)
            or (key is not None and key not in present)
        )
        assert (protection(ITEM, holder, present, 0) is not None) == protected, holder


def test_an_unknown_workspace_protects_nothing_but_its_archives_are_quarantined() -> None:
    assert protection(ITEM, None, PRESENT, 0) is None
    item = stored()
    for age, gone in (
        (RULES.orphan_grace, False),
        (RULES.retention - SECOND, False),
        (RULES.retention, True),
    ):
        swept = select_archives_to_remove([item], {"another": LIVING}, {item.key: NOW - age}, RULES, NOW)
        assert (item in swept.remove) == gone


def test_an_empty_database_counts_as_lost_and_no_archive_is_removed() -> None:
    item = stored()
    swept = select_archives_to_remove([item], {}, {item.key: NOW - 2 * RULES.retention}, RULES, NOW)
    assert "has no workspaces" in (swept.alarm or "")
    assert swept.remove == ()


@pytest.mark.parametrize("age", [timedelta(0), RULES.orphan_grace - SECOND, RULES.orphan_grace])
@pytest.mark.parametrize("purged", [False, True])
def test_an_orphan_waits_for_its_grace(age: timedelta, purged: bool) -> None:
    holder = replace(LIVING, deleted_at=NOW, purged_at=NOW, phase=Phase.DELETED) if purged else LIVING
    newest = StoredArchive(KEYS[3], ID, OP_IDS[3], 100, complete=True)
    swept = select_archives_to_remove(
        [ITEM, newest], {ID: holder}, dict.fromkeys(KEYS, NOW - age), RULES, NOW
    )
    orphans = {ITEM, newest} if purged else {ITEM}
    assert set(swept.first_seen) == {item.key for item in orphans}
    assert set(swept.remove) == (orphans if age >= RULES.orphan_grace else set())


def test_an_incomplete_archive_replaces_none() -> None:
    half = StoredArchive(KEYS[3], ID, OP_IDS[3], 100, complete=False)
    long_ago = dict.fromkeys(KEYS, NOW - 2 * RULES.retention)
    assert select_archives_to_remove([ITEM, half], {ID: LIVING}, long_ago, RULES, NOW).remove == ()


def test_an_orphan_is_first_seen_now_and_forgotten_once_it_is_protected() -> None:
    newest = StoredArchive(KEYS[3], ID, OP_IDS[3], 100, complete=True)
    first = select_archives_to_remove([ITEM, newest], {ID: LIVING}, {}, RULES, NOW)
    assert (dict(first.first_seen), first.remove) == ({ITEM.key: NOW}, ())
    later = NOW + timedelta(hours=1)
    again = select_archives_to_remove([ITEM, newest], {ID: LIVING}, first.first_seen, RULES, later)
    assert dict(again.first_seen) == {ITEM.key: NOW}, "the first time stays"
    in_error = replace(LIVING, phase=Phase.ERROR)
    assert (
        dict(
            select_archives_to_remove(
                [ITEM, newest], {ID: in_error}, first.first_seen, RULES, later
            ).first_seen
        )
        == {}
    )
    assert (
        dict(select_archives_to_remove([newest], {ID: LIVING}, first.first_seen, RULES, later).first_seen)
        == {}
    )


def store_with_orphans(total: int, orphans: int) -> tuple[list[StoredArchive], dict[str, ArchiveHolder]]:
    """Return archives, the first of them of workspaces that are not in the database."""
    listed = [stored(number, f"01ws{number:022}") for number in range(total)]
    holders = {
        item.workspace_id: ArchiveHolder(
            item.key, item.archive_op_id, Phase.ARCHIVED, None, None, frozenset()
        )
        for item in listed[orphans:]
    }
    return listed, holders


@pytest.mark.parametrize("total", [0, 1, 9, 19, 20, 21, 29, 30, 40, 100])
def test_the_mass_guard(total: int) -> None:
    for orphans in range(total + 1):
        listed, holders = store_with_orphans(total, orphans)
        long_ago = {item.key: NOW - timedelta(days=30) for item in listed}
        swept = select_archives_to_remove(listed, holders, long_ago, RULES, NOW)
        alarmed = (total >= 20 and orphans / total > 0.1) or 0 < total == orphans
        assert (swept.alarm is not None) == alarmed
        assert len(swept.remove) == (0 if alarmed else orphans)
        assert len(swept.first_seen) == orphans, "an alarm does not forget since when"


def test_expected_garbage_raises_no_alarm() -> None:
    """Archives of purged workspaces, and archives that a newer one has replaced."""
    listed = [stored(number) for number in range(40)]
    replaced = ArchiveHolder(
        listed[-1].key, listed[-1].archive_op_id, Phase.ARCHIVED, None, None, frozenset()
    )
    purged = replace(replaced, deleted_at=NOW, purged_at=NOW, phase=Phase.DELETED)
    long_ago = {item.key: NOW - timedelta(days=30) for item in listed}
    for holder, removed in ((replaced, 39), (purged, 40)):
        swept = select_archives_to_remove(listed, {ID: holder}, long_ago, RULES, NOW)
        assert (swept.alarm, len(swept.remove)) == (None, removed)


def test_an_orphan_of_a_workspace_without_an_archive_key_counts_as_suspicious() -> None:
    listed = [stored(number) for number in range(40)]
    holder = ArchiveHolder(None, None, Phase.STANDBY, None, None, frozenset())
    long_ago = {item.key: NOW - timedelta(days=30) for item in listed}
    swept = select_archives_to_remove(listed, {ID: holder}, long_ago, RULES, NOW)
    assert swept.alarm is not None
    assert swept.remove == ()
