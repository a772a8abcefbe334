"""The space that `up` keeps for the embedded PostgreSQL, on a disk that fills up."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from codehub.embedded.reserve import NAME, EmergencyReserve
from tests.integration.storage.conftest import small_disk
from tests.integration.storage.test_one_disk import Disk

MIB = 1 << 20


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Disk]:
    async with small_disk(tmp_path / "disk", 64):
        yield Disk(tmp_path / "disk")


def test_the_reserve_is_given_back_on_a_full_disk_and_made_again(disk: Disk) -> None:
    reserve = EmergencyReserve(disk.path, size=8 * MIB, nearly_full=2 * MIB)
    reserve.check()
    kept = disk.path / NAME
    assert kept.stat().st_blocks * 512 >= 8 * MIB
    disk.leave(3)
    reserve.check()
    assert kept.exists()
    disk.leave(1)
    reserve.check()
    assert not kept.exists()
    assert disk.free_bytes() >= 8 * MIB
    reserve.check()
    assert not kept.exists(), "there is not room enough to take it away again"
    disk.make_room()
    reserve.check()
    assert kept.stat().st_blocks * 512 >= 8 * MIB
    assert {path.name for path in disk.path.iterdir()} == {NAME}


def test_a_disk_without_room_for_the_reserve_goes_without(disk: Disk) -> None:
    disk.leave(20)
    EmergencyReserve(disk.path, size=8 * MIB, nearly_full=2 * MIB).check()
    assert not (disk.path / NAME).exists()
