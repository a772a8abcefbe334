"""If PostgreSQL does not start, or ends, one sentence says why and what to do."""

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from codehub.cli.supervisor import ReportsExitCause
from codehub.embedded.postgres import EmbeddedPostgres
from codehub.embedded.postgres_log import exit_cause
from codehub.embedded.private_paths import make_dir
from codehub.embedded.server_account import EmbeddedError
from tests.integration.storage.conftest import small_disk
from tests.integration.storage.test_one_disk import Disk
from tests.services import TOOLS_DIR, short_temp_dir


@pytest.fixture
async def stopped() -> AsyncIterator[tuple[EmbeddedPostgres, Disk]]:
    """A server that has run once, on a small disk."""
    directory = short_temp_dir(Path("/tmp"))
    async with small_disk(directory / "d", 200, inodes=6000):
        make_dir(directory / "d" / "pg", 0o711)
        postgres = EmbeddedPostgres(directory / "d" / "pg", TOOLS_DIR, durable=False)
        await postgres.start()
        postgres.stop()
        try:
            yield postgres, Disk(directory / "d")
        finally:
            postgres.stop()
    shutil.rmtree(directory)


async def start_error(postgres: EmbeddedPostgres) -> str:
    with pytest.raises(EmbeddedError) as caught:
        await postgres.start()
    return str(caught.value)


async def test_the_reason_for_a_failed_start_is_named(stopped: tuple[EmbeddedPostgres, Disk]) -> None:
    postgres, disk = stopped
    control = postgres.cluster / "global" / "pg_control"
    content = control.read_bytes()
    control.write_bytes(bytes(len(content)))  # as a power failure may leave it
    damaged = await start_error(postgres)
    assert "its control file or its write-ahead log is damaged, or of another version" in damaged
    assert "Homes and archives are not affected" in damaged
    control.write_bytes(content)

    disk.leave(0)
    full = await start_error(postgres)
    assert full.startswith(
        "PostgreSQL ended: its disk has no bytes or no inodes left. Make room on the disk of "
    )
    assert "damaged" not in full, "only the log of the last run counts"
    disk.make_room()

    if os.geteuid() == 0:
        owner = postgres.cluster.stat()
        os.chown(postgres.cluster, 0, 0)
        foreign = await start_error(postgres)
        assert "its files belong to another user, or their permissions are wrong" in foreign
        os.chown(postgres.cluster, owner.st_uid, owner.st_gid)
    await postgres.start()
    assert isinstance(postgres, ReportsExitCause)
    assert postgres.exit_cause() is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('PANIC:  could not write to file "pg_wal/xlogtemp.7": No space left on device', "no inodes left"),
        ('FATAL:  lock file "postmaster.pid" already exists', "another server uses its data directory"),
        ("FATAL:  could not create Unix socket: Address already in use", "another server uses"),
        ("PANIC:  could not locate a valid checkpoint record", "write-ahead log is damaged"),
        ("FATAL:  database files are incompatible with server", "or of another version of PostgreSQL"),
        ("FATAL:  something new", "PostgreSQL ended: something new"),
    ],
)
def test_the_causes_that_a_log_names(line: str, message: str) -> None:
    before = "2026-01-01 00:00:00 UTC [7] LOG:  starting PostgreSQL\n"
    assert message in (
        exit_cause(f"{before}2026-01-01 00:00:01 UTC [7] {line}\n", Path("/data/postgres")) or ""
    )


def test_a_log_that_names_no_cause() -> None:
    log = 'LOG:  database system was shut down\nERROR:  relation "x" already exists\n'
    assert exit_cause(log, Path("/data/postgres")) is None
