"""User quotas on a real ext4 of a fixed size, if the kernel supports them."""

import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from codehub.storage.volumes.quota import HEADROOM, HomeQuota, QuotaState, quota_state, set_quota, usage_of
from tests.integration.storage.conftest import FIRST, KEY, quota_disk, storage_at
from tests.trees import tree_hash

MIB = 1 << 20
ONE, OTHER = 2_990_001, 2_990_002
QUOTA = HomeQuota(80 * MIB, 2000)
WRITE = """
import os, sys
path, uid, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) << 20
os.setgroups([]); os.setgid(uid); os.setuid(uid)
done = 0
try:
    with open(path, "ab", buffering=0) as file:
        while done < limit:
            done += file.write(bytes(1 << 20))
except OSError as error:
    print(done >> 20, error.errno)
else:
    print(done >> 20, 0)
"""


@pytest.fixture
def disk() -> Iterator[Path]:
    with quota_disk() as place:
        yield place


def home_of(disk: Path, uid: int) -> Path:
    home = disk / f"home-{uid}"
    home.mkdir(mode=0o700)
    subprocess.run(["chown", f"{uid}:{uid}", home], check=True)
    return home


def write(home: Path, uid: int, megabytes: int) -> tuple[int, int]:
    """Write as a user; return the megabytes written, and the error that ended it."""
    command = [sys.executable, "-S", "-c", WRITE, str(home / "data"), str(uid), str(megabytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    written, number = done.stdout.split()
    return int(written), int(number)


def test_a_user_gets_edquot_at_the_quota_and_others_can_write(disk: Path) -> None:
    assert quota_state(disk) is QuotaState.ENFORCED
    one, other = home_of(disk, ONE), home_of(disk, OTHER)
    assert set_quota(disk, ONE, QUOTA) == QUOTA
    written, number = write(one, ONE, 1000)
    assert number == errno.EDQUOT
    assert 75 <= written <= 80
    assert write(other, OTHER, 100) == (100, 0)
    used = usage_of(disk, ONE)
    assert used is not None
    assert 75 * MIB <= used.bytes <= QUOTA.bytes


def test_a_full_home_gets_headroom_for_its_next_start_and_no_quota_frees_it(disk: Path) -> None:
    home = home_of(disk, ONE)
    set_quota(disk, ONE, QUOTA)
    write(home, ONE, 1000)
    raised = set_quota(disk, ONE, QUOTA)
    assert QUOTA.bytes + HEADROOM - 5 * MIB <= raised.bytes <= QUOTA.bytes + HEADROOM
    assert write(home, ONE, 1000)[1] == errno.EDQUOT
    assert set_quota(disk, ONE, QUOTA).bytes == QUOTA.bytes + HEADROOM, "restarts give no more"
    lowered = HomeQuota(10 * MIB, QUOTA.files)
    raised = set_quota(disk, ONE, lowered)
    assert raised.bytes > QUOTA.bytes + HEADROOM
    assert write(home, ONE, 1000)[1] == errno.EDQUOT
    assert set_quota(disk, ONE, lowered) == raised
    (home / "data").unlink()
    assert set_quota(disk, ONE, QUOTA) == QUOTA
    set_quota(disk, ONE, HomeQuota())
    assert write(home, ONE, 120) == (120, 0)


async def test_a_quota_below_the_size_of_the_home_does_not_fail_a_restore(disk: Path) -> None:
    storage = storage_at(disk)
    await storage.initialise()
    await storage.volumes.provision(KEY, FIRST, epoch=1, uid=ONE)
    (storage.home / "large").write_bytes(bytes(90 * MIB))
    subprocess.run(["chown", "-R", f"{ONE}:{ONE}", storage.home], check=True)
    before = tree_hash(storage.home)
    await storage.done("archive", storage.archive_job())
    await storage.done("delete", storage.delete_job())
    set_quota(disk, ONE, HomeQuota(70 * MIB))
    await storage.done("restore", storage.restore_job())
    assert tree_hash(storage.home) == before
    assert storage.volumes.path(KEY).stat().st_uid == ONE


def test_a_file_system_without_quotas_counts_nothing(tmp_path: Path) -> None:
    if quota_state(Path("/dev/shm")) is not QuotaState.OFF:
        pytest.skip("this kernel mounts no file system without user quotas")
    assert usage_of(Path("/dev/shm"), ONE) is None
