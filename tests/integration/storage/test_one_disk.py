"""Homes, archives and jobs on one full disk."""

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from codehub.database import gate
from codehub.domain.observation import JobState, VolumeFact
from codehub.domain.states import DesiredState, Operation, Phase
from codehub.domain.workspace import Workspace
from codehub.storage.jobs.program import SPEC
from codehub.storage.jobs.report import has_result, read_ended, reserve_result_space
from codehub.storage.jobs.spec import dump_spec
from tests.integration.coordinator.conftest import LIMITS, CoordinatorStack, new_stack
from tests.integration.storage.conftest import FIRST, KEY, StorageFixture, small_disk, storage_at
from tests.integration.storage.test_full_disk import fill
from tests.trees import chown_to_home_owner, tree_hash

DISK, HOME = 64, 10
ROOM = 16 << 10
ALONE = {".lock", ".fence"}
FILLS_UP = """
import contextlib, sys
from codehub.storage.jobs import program
run = program._run
def then_fill_up(directory, lock):
    result = run(directory, lock)
    with contextlib.suppress(OSError), open(sys.argv[2], "wb", buffering=0) as rest:
        while rest.write(bytes(4096)):
            pass
    return result
program._run = then_fill_up
sys.exit(program.main(sys.argv[1:2]))
"""


class Disk:
    """Small disk with a file that leaves only little free space."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def leave(self, megabytes: float) -> None:
        self.make_room()
        taken = self.free_bytes() - int(megabytes * (1 << 20))
        with self._ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, taken)

    def free_bytes(self) -> int:
        return shutil.disk_usage(self.path).free

    def make_room(self) -> None:
        self._ballast.unlink(missing_ok=True)


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Disk]:
    async with small_disk(tmp_path / "disk", DISK):
        yield Disk(tmp_path / "disk")


@pytest.fixture
async def storage(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> StorageFixture:
    monkeypatch.setenv("TMPDIR", str(disk.path))
    storage = storage_at(disk.path)
    await storage.initialise()
    await storage.volumes.provision(KEY, FIRST, epoch=1, uid=None)
    fill(storage.home, HOME)
    return storage


@pytest.mark.parametrize("left", [HOME - 1, 0.1])
async def test_a_full_disk_fails_archive_and_restore_until_there_is_free_space(
    disk: Disk, storage: StorageFixture, left: float
) -> None:
    before = tree_hash(storage.home)
    disk.leave(left)
    fact = await storage.run("archive", storage.archive_job())
    assert fact.state is JobState.FAILED
    assert "No space left on device; make room" in fact.message
    assert await storage.store.list() == []
    assert tree_hash(storage.home) == before
    assert await storage.volumes.status(KEY) == VolumeFact(FIRST)
    disk.make_room()
    await storage.done("archive-again", storage.archive_job())
    await storage.done("delete", storage.delete_job())

    disk.leave(left)
    fact = await storage.run("restore", storage.restore_job())
    assert fact.state is JobState.FAILED
    assert "make room on the disk" in fact.message
    assert storage.beside_home() == ALONE
    disk.make_room()
    await storage.done("restore-again", storage.restore_job())
    assert tree_hash(storage.home) == before


async def test_an_archive_fails_at_the_disk_reserve(disk: Disk, storage: StorageFixture) -> None:
    """The free space would suffice, but is reserved for the database."""
    before = tree_hash(storage.home)
    fact = await storage.run("archive", storage.archive_job(reserve=disk.free_bytes()))
    assert fact.state is JobState.FAILED
    assert "kept in reserve: make room on the disk" in fact.message
    assert await storage.store.list() == []
    assert tree_hash(storage.home) == before
    await storage.done("again", storage.archive_job(reserve=disk.free_bytes() - (HOME + 1 << 20)))


def test_a_job_that_ends_on_a_full_disk_reports_why(disk: Disk, storage: StorageFixture) -> None:
    disk.leave(1)
    directory = storage.root / "jobs" / "archive"
    directory.mkdir(parents=True)
    (directory / SPEC).write_bytes(dump_spec(storage.archive_job()))
    rest = disk.path / "rest"
    subprocess.run([sys.executable, "-c", FILLS_UP, directory, rest], capture_output=True, check=False)
    assert disk.free_bytes() < ROOM, "only what is left of the reserved space is free"
    fact = read_ended(directory)
    assert fact.state is JobState.FAILED
    assert "make room" in fact.message


def test_space_reserved_for_a_result_is_not_a_result(tmp_path: Path) -> None:
    reserve_result_space(tmp_path)
    assert not has_result(tmp_path)
    assert read_ended(tmp_path).state is JobState.GONE
    assert sum(path.stat().st_blocks * 512 for path in tmp_path.iterdir()) >= ROOM


@pytest.fixture
async def stack(disk: Disk, database_url: str, redis_url: str) -> AsyncIterator[CoordinatorStack]:
    """Coordinator with everything but the database on the disk."""
    async with new_stack(database_url, redis_url, within=disk.path) as stack:
        yield stack


async def recovered(stack: CoordinatorStack, workspace_id: str, phase: Phase) -> None:
    async with stack.engine.begin() as conn:
        now = datetime.now(UTC)
        await gate.recover(conn, workspace_id, actor="u1", limits=LIMITS, source=None, now=now)
    await stack.until_phase(workspace_id, phase)


async def in_error(stack: CoordinatorStack, workspace_id: str, desired: DesiredState) -> Workspace:
    await stack.set_desired_state(workspace_id, desired)
    return await stack.until(workspace_id, lambda w: w.phase is Phase.ERROR and w.operation is Operation.NONE)


async def test_a_full_disk_is_reported_to_the_owner_and_a_recovery_continues_with_free_space(
    disk: Disk, stack: CoordinatorStack
) -> None:
    await stack.start()
    workspace_id = await stack.create(DesiredState.STANDBY)
    await stack.until_phase(workspace_id, Phase.STANDBY)
    home = await stack.home(workspace_id)
    fill(home, HOME)
    chown_to_home_owner(home)
    before = tree_hash(home)

    disk.leave(HOME - 1)
    failed = await in_error(stack, workspace_id, DesiredState.ARCHIVED)
    assert "make room" in (failed.error_message or "")
    assert failed.archive_key is None
    assert tree_hash(home) == before
    disk.make_room()
    await recovered(stack, workspace_id, Phase.ARCHIVED)
    assert not home.exists()

    disk.leave(HOME - 1)
    failed = await in_error(stack, workspace_id, DesiredState.STANDBY)
    assert "make room" in (failed.error_message or "")
    assert {path.name for path in home.parent.iterdir()} == ALONE
    disk.make_room()
    await recovered(stack, workspace_id, Phase.STANDBY)
    assert tree_hash(home) == before


async def test_an_archive_leaves_a_quarter_of_the_reserve(disk: Disk, stack: CoordinatorStack) -> None:
    """Restores and starts keep the whole reserve; archiving may use a part, as it frees space."""
    await stack.start(stack.with_settings(disk_reserve_bytes=32 << 20))
    workspace_id = await stack.create(DesiredState.STANDBY)
    await stack.until_phase(workspace_id, Phase.STANDBY)
    home = await stack.home(workspace_id)
    fill(home, HOME)
    disk.leave(7)
    failed = await in_error(stack, workspace_id, DesiredState.ARCHIVED)
    assert "8 MiB are kept in reserve: make room on the disk" in (failed.error_message or "")
    disk.leave(HOME + 9)
    await recovered(stack, workspace_id, Phase.ARCHIVED)
    assert not home.exists()
