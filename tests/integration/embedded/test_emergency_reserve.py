"""The disk space that `up` reserves for the embedded PostgreSQL."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from codehub.database.engine import CONNECTION_ERRORS
from codehub.embedded.emergency_reserve import NAME, EmergencyReserve
from codehub.embedded.postgres import EmbeddedPostgres
from codehub.embedded.private_paths import make_dir
from tests.integration.storage.conftest import small_disk
from tests.integration.storage.test_one_disk import Disk
from tests.services import TOOLS_DIR, short_temp_dir
from tests.waiting import eventually

MIB = 1 << 20
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
    assert {path.name for path in disk.path.iterdir()} == {NAME}


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
