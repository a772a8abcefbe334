"""A full disk fails the operation, and nothing is lost."""

import os
import subprocess
from pathlib import Path

from codehub.domain.observation import JobState, VolumeFact
from codehub.domain.states import ErrorReason
from tests.integration.storage.conftest import FIRST, KEY, small_disk, storage_at
from tests.trees import tree_hash


def fill(home: Path, megabytes: int) -> None:
    for number in range(megabytes):
        (home / f"{number}").write_bytes(os.urandom(1 << 20))


async def test_a_restore_onto_a_full_disk_leaves_no_volume_and_works_with_free_space(tmp_path: Path) -> None:
    big = storage_at(tmp_path)
    await big.initialise()
    await big.volumes.provision(KEY, FIRST, epoch=1, uid=None)
    fill(big.home, 12)
    before = tree_hash(big.home)
    await big.done("archive", big.archive_job())
    async with small_disk(tmp_path / "small", 8):
        storage = storage_at(tmp_path, volumes=tmp_path / "small")
        storage.volumes.initialise()
        fact = await storage.run("full", storage.restore_job())
        assert (fact.state, fact.reason) == (JobState.FAILED, ErrorReason.ActionFailed)
        assert "make room on the disk" in fact.message
        assert await storage.volumes.status(KEY) is None
        assert storage.beside_home() == {".lock", ".fence"}
        subprocess.run(["mount", "-o", "remount,size=64m", str(tmp_path / "small")], check=True)
        await storage.done("roomy", storage.restore_job())
        assert tree_hash(storage.home) == before


async def test_a_restore_leaves_the_reserve_of_inodes(tmp_path: Path) -> None:
    big = storage_at(tmp_path)
    await big.initialise()
    await big.make_home(files=600)
    before = tree_hash(big.home)
    await big.done("archive", big.archive_job())
    async with small_disk(tmp_path / "small", 64, inodes=2000):
        storage = storage_at(tmp_path, volumes=tmp_path / "small")
        storage.volumes.initialise()
        fact = await storage.run("full", storage.restore_job(reserve_files=1800))
        assert (fact.state, fact.reason) == (JobState.FAILED, ErrorReason.ActionFailed)
        assert "more files, and 1,800 are kept in reserve: make room on the disk" in fact.message
        assert await storage.volumes.status(KEY) is None
        assert storage.beside_home() == {".lock", ".fence"}
        await storage.done("roomy", storage.restore_job(reserve_files=100))
        assert tree_hash(storage.home) == before


async def test_an_archive_into_a_full_store_keeps_the_home_and_leaves_no_object(tmp_path: Path) -> None:
    async with small_disk(tmp_path / "small", 8):
        storage = storage_at(tmp_path, archives=tmp_path / "small")
        await storage.initialise()
        await storage.volumes.provision(KEY, FIRST, epoch=1, uid=None)
        fill(storage.home, 12)
        before = tree_hash(storage.home)
        fact = await storage.run("full", storage.archive_job())
        assert (fact.state, fact.reason) == (JobState.FAILED, ErrorReason.ActionFailed)
        assert "No space left on device" in fact.message
        assert await storage.store.list() == []
        assert tree_hash(storage.home) == before
        assert await storage.volumes.status(KEY) == VolumeFact(FIRST)
        subprocess.run(["mount", "-o", "remount,size=64m", str(tmp_path / "small")], check=True)
        await storage.done("roomy", storage.archive_job())
        await storage.done("delete", storage.delete_job())
        await storage.done("restore", storage.restore_job())
        assert tree_hash(storage.home) == before
