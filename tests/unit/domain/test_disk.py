"""The rules of the disk watchdog: which workspaces it warns and stops."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from codehub.domain.disk import (
    DiskRules,
    DiskState,
    FreeSpace,
    Reserve,
    Resource,
    RunningHome,
    Shortage,
    choose_disk_actions,
    grace_of,
    is_below_multiple,
    is_shortage_over,
    largest_after_freeing,
    shortages,
    size_limit_under_shortage,
    size_text,
    waiting_message,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MIB, GIB = 1 << 20, 1 << 30
RULES = DiskRules(reserve=GIB, grace=timedelta(minutes=2))
LOW = DiskState(free=600 * MIB)


def ids(notices: object) -> list[str]:
    return [notice.workspace_id for notice in notices]  # type: ignore[attr-defined]


def warned(name: str, size: int, ago: timedelta = timedelta(minutes=3)) -> RunningHome:
    return RunningHome(name, size, NOW - ago)


def test_no_warning_while_the_reserve_is_free() -> None:
    relief = choose_disk_actions(DiskState(free=GIB), [RunningHome("hog", 40 * GIB)], RULES, NOW)
    assert (relief.warn, relief.stop) == ((), ())


def test_the_largest_is_warned_first_and_stopped_after_the_grace() -> None:
    homes = [RunningHome("small", GIB), RunningHome("hog", 40 * GIB)]
    assert ids(choose_disk_actions(LOW, homes, RULES, NOW).warn) == ["hog"]
    early = choose_disk_actions(LOW, [homes[0], warned("hog", 40 * GIB, timedelta(seconds=119))], RULES, NOW)
    assert (early.warn, early.stop) == ((), ())
    late = choose_disk_actions(LOW, [homes[0], warned("hog", 40 * GIB)], RULES, NOW)
    assert ids(late.stop) == ["hog"]


def test_one_workspace_is_stopped_at_a_time_and_its_space_counts_as_expected() -> None:
    """A stop frees no space. The archive frees it later."""
    homes = [warned("a", 2 * GIB), warned("b", 2 * GIB + 1), warned("c", 100 * MIB)]
    assert ids(choose_disk_actions(LOW, homes, RULES, NOW).stop) == ["b"]
    after = DiskState(LOW.free, expected=2 * GIB)
    assert choose_disk_actions(after, [homes[0], homes[2]], RULES, NOW).stop == ()


def test_below_a_quarter_of_the_reserve_expected_space_does_not_count() -> None:
    urgent = DiskState(free=200 * MIB, expected=50 * GIB)
    homes = [warned("a", 5 * GIB), warned("b", 5 * GIB), warned("c", 100 * MIB)]
    assert ids(choose_disk_actions(urgent, homes, RULES, NOW).stop) == ["a", "b"]


def test_the_share_shrinks_with_the_last_quarter_so_that_small_homes_are_stopped_too() -> None:
    homes = [warned("writer", GIB), warned("other", 5 * GIB)]
    assert ids(choose_disk_actions(DiskState(free=250 * MIB), homes, RULES, NOW).stop) == ["other"]
    assert ids(choose_disk_actions(DiskState(free=25 * MIB), homes, RULES, NOW).stop) == ["other", "writer"]


def test_on_a_nearly_full_disk_the_largest_is_stopped_without_a_warning_and_the_others_are_warned() -> None:
    """The warning of a fast writer may come too late, or fail: the database is on the same disk."""
    homes = [RunningHome("hog", 40 * GIB), RunningHome("other", 5 * GIB)]
    full = DiskState(free=15 * MIB)
    actions = choose_disk_actions(full, homes, RULES, NOW)
    assert (ids(actions.stop), ids(actions.warn)) == (["hog"], ["other"])
    assert choose_disk_actions(DiskState(free=17 * MIB), homes, RULES, NOW).stop == ()


def test_while_a_stopped_workspace_still_runs_no_other_is_stopped_without_a_warning() -> None:
    full = DiskState(free=0, stopping=True)
    assert choose_disk_actions(full, [RunningHome("next", 5 * GIB)], RULES, NOW).stop == ()
    assert ids(choose_disk_actions(full, [warned("next", 5 * GIB)], RULES, NOW).stop) == ["next"]


def test_a_single_home_is_stopped() -> None:
    assert ids(choose_disk_actions(LOW, [warned("only", 3 * GIB)], RULES, NOW).stop) == ["only"]


def test_a_tiny_home_is_left_alone() -> None:
    assert choose_disk_actions(DiskState(free=0), [warned("tiny", 100 * MIB)], RULES, NOW).stop == ()


def test_the_grace_ends_before_the_disk_is_full() -> None:
    assert grace_of(LOW, RULES) == RULES.grace
    assert grace_of(DiskState(LOW.free, full_in=timedelta(hours=1)), RULES) == RULES.grace
    assert grace_of(DiskState(LOW.free, full_in=timedelta(seconds=8)), RULES) == timedelta(seconds=2)


def test_warnings_end_above_the_reserve_only() -> None:
    reserve = Reserve(GIB, 1000)
    assert not is_shortage_over(FreeSpace(GIB, 5000), reserve)
    assert not is_shortage_over(FreeSpace(40 * GIB, 1249), reserve)
    assert is_shortage_over(FreeSpace(GIB + GIB // 4, 1250), reserve)
    assert is_shortage_over(FreeSpace(GIB + GIB // 4, None), reserve)


def test_a_disk_is_short_of_bytes_of_inodes_or_of_both() -> None:
    reserve = Reserve(GIB, 1000)
    assert shortages(FreeSpace(GIB, 1000), reserve) == ()
    assert shortages(FreeSpace(GIB - 1, 1000), reserve) == (Shortage(Resource.BYTES, GIB - 1, GIB),)
    assert shortages(FreeSpace(GIB, 999), reserve) == (Shortage(Resource.FILES, 999, 1000),)
    assert [item.resource for item in shortages(FreeSpace(0, 0), reserve)] == ["bytes", "files"]
    assert shortages(FreeSpace(0, 0), Reserve(0, 0)) == ()


def test_a_file_system_without_a_fixed_number_of_inodes_is_never_short_of_them() -> None:
    assert shortages(FreeSpace(GIB, None), Reserve(GIB, 1000)) == ()
    assert not is_below_multiple(2, FreeSpace(4 * GIB, None), Reserve(GIB, 1000))
    assert is_below_multiple(2, FreeSpace(4 * GIB, 1999), Reserve(GIB, 1000))


def test_short_of_inodes_the_home_with_the_most_files_is_stopped() -> None:
    rules, low = DiskRules(reserve=10_000), DiskState(free=4000, resource=Resource.FILES)
    homes = [warned("few", 40_000), warned("many", 900_000)]
    stop = choose_disk_actions(low, homes, rules, NOW).stop
    assert [notice.message for notice in stop] == [
        "Stopped: the disk can take only 4,000 more files (reserve 10,000) and this home has 900,000 files, "
        "more than its share. Nothing was removed. Remove files after the next start, or ask an admin to "
        "make room."
    ]
    assert waiting_message(Shortage(Resource.FILES, 4000, 10_000)).startswith(
        "Waiting for disk space: the disk of the homes can take only 4,000 more files, less than the reserve "
        "of 10,000."
    )


def test_messages_name_the_numbers_and_what_to_do() -> None:
    stopped = choose_disk_actions(LOW, [warned("hog", 41 * GIB)], RULES, NOW).stop[0].message
    assert stopped == (
        "Stopped: the disk has 600 MiB left (reserve 1.0 GiB) and this home has 41.0 GiB, more than its "
        "share. Nothing was removed. Remove files after the next start, or ask an admin to make room."
    )
    assert (
        "in about 120 s"
        in choose_disk_actions(LOW, [RunningHome("hog", 41 * GIB)], RULES, NOW).warn[0].message
    )
    assert size_text(12) == "12 bytes"


sizes = st.lists(st.integers(0, 100 * GIB), min_size=1, max_size=12)


@given(sizes, st.integers(0, 4 * GIB))
def test_homes_cut_to_the_size_free_the_missing_space(found: list[int], missing: int) -> None:
    level = largest_after_freeing(found, missing)
    given_back = sum(max(size - level, 0) for size in found)
    assert given_back >= min(missing, sum(found))
    assert given_back - missing < len(found) or missing == 0


@given(sizes, st.integers(0, 2 * GIB), st.integers(0, 60 * GIB))
def test_no_home_at_or_below_the_share_is_stopped(found: list[int], free: int, expected: int) -> None:
    disk = DiskState(free, expected)
    share = size_limit_under_shortage(disk, found, RULES) if free < RULES.reserve else max(found)
    for seen in (timedelta(0), timedelta(hours=1)):
        homes = [warned(str(n), size, seen) for n, size in enumerate(found)]
        for notice in choose_disk_actions(disk, homes, RULES, NOW).stop:
            assert found[int(notice.workspace_id)] > share


@given(sizes, st.integers(0, GIB - 1))
def test_below_the_reserve_the_largest_is_stopped_unless_it_is_small(found: list[int], free: int) -> None:
    homes = [warned(str(n), size) for n, size in enumerate(found)]
    stopped = choose_disk_actions(DiskState(free), homes, RULES, NOW).stop
    if max(found) > RULES.reserve // 8:
        assert found[int(stopped[0].workspace_id)] == max(found)
    else:
        assert stopped == ()
