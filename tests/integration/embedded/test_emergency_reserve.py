"""The disk space that `up` reserves for the embedded PostgreSQL."""

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from codehub.database.engine import CONNECTION_ERRORS
from codehub.embedded.emergency_reserve import INODES, INODES_NAME, NAME, EmergencyReserve
from codehub.embedded.postgres import EmbeddedPostgres
from codehub.embedded.private_paths import make_dir
from codehub.embedded.server_account import server_account
from tests.integration.storage.conftest import small_disk
from tests.integration.storage.test_one_disk import Disk
from tests.services import TOOLS_DIR, short_temp_dir
from tests.waiting import eventually

MIB = 1 << 20
OTHER_USER = 64_000
GROWS_A_TABLE = "INSERT INTO written VALUES (repeat('x', 1000000))"
GROWS_THE_LOG = "SELECT pg_logical_emit_message(false, 'test', repeat('x', 1000000))"


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Disk]:
    async with small_disk(tmp_path / "disk", 64):
        yield Disk(tmp_path / "disk")


def test_the_reserve_is_deleted_on_a_full_disk_and_created_again(disk: Disk) -> None:
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
    assert not kept.exists(), "there is too little space to create it again"
    disk.make_room()
    reserve.check()
    assert kept.stat().st_blocks * 512 >= 8 * MIB
    assert {path.name for path in disk.path.iterdir()} == {NAME, INODES_NAME}


async def test_inodes_are_given_back_when_the_disk_has_none_left_and_reserved_again(tmp_path: Path) -> None:
    async with small_disk(tmp_path / "disk", 64, inodes=1000):
        path = tmp_path / "disk"
        reserve = EmergencyReserve(path, size=1 * MIB, nearly_full=0)
        reserve.check()
        assert (path / INODES_NAME).is_dir()
        taken = [path / str(number) for number in range(os.statvfs(path).f_favail)]
        for file in taken:
            file.touch()
        reserve.check()
        assert not (path / INODES_NAME).exists()
        assert os.statvfs(path).f_favail >= INODES
        reserve.check()
        assert not (path / INODES_NAME).exists(), "there are too few inodes to reserve them again"
        for file in taken:
            file.unlink()
        reserve.check()
        assert len(list((path / INODES_NAME).iterdir())) == INODES


def test_a_disk_without_space_gets_no_reserve(disk: Disk) -> None:
    disk.leave(20)
    EmergencyReserve(disk.path, size=8 * MIB, nearly_full=2 * MIB).check()
    assert not (disk.path / NAME).exists()


@pytest.mark.parametrize("statement", [GROWS_A_TABLE, GROWS_THE_LOG], ids=["table", "log"])
async def test_postgresql_writes_again_after_another_writer_has_filled_the_disk(statement: str) -> None:
    """A table that cannot grow fails a statement.

    A write-ahead log that cannot grow ends the server.
    """
    directory = short_temp_dir()
    async with small_disk(directory / "d", 360):
        disk, data_dir = Disk(directory / "d"), directory / "d" / "pg"
        make_dir(data_dir, 0o711)
        postgres, reserve = EmbeddedPostgres(data_dir, TOOLS_DIR), EmergencyReserve(data_dir)
        try:
            await postgres.start()
            await execute(postgres, "CREATE TABLE written (data text STORAGE EXTERNAL)")
            reserve.check()
            assert (data_dir / NAME).exists()
            disk.leave(0)
            with pytest.raises(CONNECTION_ERRORS):
                for _ in range(100):
                    await execute(postgres, statement)
            reserve.check()
            await eventually(lambda: writes(postgres), "PostgreSQL to take a write")
            assert (disk.path / "ballast").exists()
        finally:
            postgres.stop()
    shutil.rmtree(directory)


async def test_postgresql_writes_to_blocks_that_ext4_reserves_for_its_user_while_others_fill_the_disk() -> (
    None
):
    """As docs/disk.md advises. Workspaces have users of their own."""
    directory = short_temp_dir()
    async with ext4_with_reserved_blocks(directory, server_account().uid) as mounted:
        data_dir, hog = mounted / "data", mounted / "hog"
        make_dir(data_dir, 0o711)
        make_dir(hog, 0o777)
        postgres = EmbeddedPostgres(data_dir, TOOLS_DIR)
        try:
            await postgres.start()
            await execute(postgres, "CREATE TABLE written (data text STORAGE EXTERNAL)")
            fill = ["dd", "if=/dev/zero", f"of={hog}/data", "bs=1M", "status=none"]
            assert subprocess.run(fill, user=OTHER_USER, check=False).returncode != 0
            assert shutil.disk_usage(mounted).free < MIB
            for _ in range(10):
                await execute(postgres, GROWS_A_TABLE)
            await execute(postgres, GROWS_THE_LOG)
        finally:
            postgres.stop()
    shutil.rmtree(directory)


@asynccontextmanager
async def ext4_with_reserved_blocks(directory: Path, uid: int) -> AsyncIterator[Path]:
    image, mounted = directory / "image", directory / "mounted"
    with image.open("wb") as file:
        file.truncate(400 * MIB)
    mounted.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-m", "20", image], check=True)
    done = subprocess.run(
        ["mount", "-o", f"loop,resuid={uid}", image, mounted], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.decode().strip()}")
    mounted.chmod(0o711)
    try:
        yield mounted
    finally:
        subprocess.run(["umount", mounted], check=True)


async def execute(postgres: EmbeddedPostgres, statement: str) -> None:
    connection = await asyncpg.connect(postgres.url)
    try:
        await connection.execute(statement)
    finally:
        connection.terminate()


async def writes(postgres: EmbeddedPostgres) -> bool:
    """Return whether a write succeeds. Restart a server that has ended, as the supervisor does."""
    assert postgres.process is not None
    if postgres.process.poll() is not None:
        await postgres.start()
    try:
        await execute(postgres, GROWS_A_TABLE)
    except CONNECTION_ERRORS:
        return False
    return True
