"""The limits that a start sets, for homes that are near or above their quota."""

import pytest

from codehub.storage.volumes.quota import HEADROOM, HEADROOM_FILES, DiskQuota, HomeQuota, next_limits

GIB = 1 << 30
QUOTA = HomeQuota(10 * GIB, 100_000)
MOST = HomeQuota(QUOTA.bytes + HEADROOM, QUOTA.files + HEADROOM_FILES)
LOWERED = HomeQuota(5 * GIB, 50_000)


def start(disk: DiskQuota, quota: HomeQuota) -> HomeQuota:
    """Set the limits of a start; return them."""
    wanted = next_limits(disk, quota)
    disk.block_limit, disk.block_soft_limit = wanted.block_limit, wanted.block_soft_limit
    disk.file_limit, disk.file_soft_limit = wanted.file_limit, wanted.file_soft_limit
    return HomeQuota(disk.block_limit * 1024, disk.file_limit)


def fill(disk: DiskQuota) -> None:
    """Write until both limits are reached."""
    disk.bytes, disk.files = disk.block_limit * 1024, disk.file_limit


def test_a_home_with_space_left_gets_its_quota() -> None:
    assert start(DiskQuota(bytes=GIB, files=10), QUOTA) == QUOTA


def test_restarts_give_a_full_home_headroom_once() -> None:
    disk = DiskQuota()
    assert start(disk, QUOTA) == QUOTA
    for _ in range(3):
        fill(disk)
        assert start(disk, QUOTA) == MOST


def test_a_home_that_has_used_half_of_its_headroom_gets_the_other_half() -> None:
    disk = DiskQuota(bytes=QUOTA.bytes + HEADROOM // 2, files=QUOTA.files + HEADROOM_FILES // 2)
    assert start(disk, QUOTA) == MOST


@pytest.mark.parametrize("before", [QUOTA, HomeQuota()], ids=["lowered", "introduced"])
def test_a_home_above_a_new_quota_gets_headroom_once(before: HomeQuota) -> None:
    disk = DiskQuota()
    start(disk, before)
    disk.bytes, disk.files = QUOTA.bytes, QUOTA.files
    for _ in range(3):
        assert start(disk, LOWERED) == MOST
        fill(disk)


def test_a_home_above_a_lowered_quota_does_not_grow_back() -> None:
    disk = DiskQuota(bytes=9 * GIB, files=90_000)
    start(disk, LOWERED)
    disk.bytes, disk.files = 7 * GIB, 70_000
    less = start(disk, LOWERED)
    assert less == HomeQuota(7 * GIB + HEADROOM, 70_000 + HEADROOM_FILES)
    fill(disk)
    assert start(disk, LOWERED) == less
    disk.bytes, disk.files = GIB, 1000
    assert start(disk, LOWERED) == LOWERED


def test_a_home_that_a_restore_has_made_larger_still_starts() -> None:
    disk = DiskQuota(bytes=9 * GIB, files=90_000)
    start(disk, LOWERED)
    disk.bytes, disk.files = 10 * GIB, 100_000
    assert start(disk, LOWERED) == MOST


def test_without_a_quota_there_is_no_limit() -> None:
    disk = DiskQuota(bytes=QUOTA.bytes, files=QUOTA.files)
    start(disk, LOWERED)
    assert start(disk, HomeQuota()) == HomeQuota()
