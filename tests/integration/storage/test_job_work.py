"""Storage jobs as real processes: what they do to homes and archives, and what they refuse."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from codehub.domain.observation import ArchiveFact, Generation, JobState, VolumeFact
from codehub.domain.states import ErrorReason
from codehub.storage.archive.archives import BlockingArchiveStore
from codehub.storage.archive.local_object_store import LocalObjectStore
from codehub.storage.errors import StoreTrouble
from codehub.storage.jobs import program
from codehub.storage.jobs.report import Reporter
from codehub.storage.jobs.spec import ClearJob
from codehub.storage.jobs.work import JobContext, run_job
from tests.integration.storage.conftest import FIRST, KEY, StorageFixture, on_both_stores
from tests.trees import make_tree, tree_hash

RESTORED = Generation("op2", "w1/a1/home.tar.zst")
ARCHIVE = {"w1/a1/home.tar.zst", "w1/a1/.meta"}


@on_both_stores
async def test_a_home_goes_to_the_store_and_comes_back(storage: StorageFixture) -> None:
    await storage.make_home()
    before = tree_hash(storage.home)
    fact = await storage.done("archive", storage.archive_job())
    assert fact.message.startswith("archived ")
    archive = await storage.store.find("w1", "a1")
    assert archive is not None
    assert tree_hash(storage.home) == before
    assert await storage.volumes.status(KEY) == VolumeFact(FIRST)

    await storage.done("delete", storage.delete_job())
    assert await storage.volumes.status(KEY) is None
    assert storage.beside_home() == {".lock", ".fence"}

    await storage.done("restore", storage.restore_job(sha256=archive.sha256))
    assert await storage.volumes.status(KEY) == VolumeFact(RESTORED)
    assert tree_hash(storage.home) == before
    assert storage.beside_home() == {".lock", ".fence", ".marker", "home"}


@on_both_stores
async def test_a_second_archive_of_the_same_operation_uploads_nothing(storage: StorageFixture) -> None:
    await storage.make_home()
    await storage.done("first", storage.archive_job())
    stored = (storage.archives_root / "w1/a1/home.tar.zst").stat()
    (storage.home / "later").write_text("written after the archive")
    fact = await storage.done("second", storage.archive_job())
    assert fact.message == "the archive was already complete"
    again = (storage.archives_root / "w1/a1/home.tar.zst").stat()
    assert (again.st_ino, again.st_mtime_ns) == (stored.st_ino, stored.st_mtime_ns)


@on_both_stores
async def test_an_object_without_meta_is_overwritten(storage: StorageFixture) -> None:
    await storage.make_home()
    (storage.archives_root / "w1/a1").mkdir(parents=True)
    (storage.archives_root / "w1/a1/home.tar.zst").write_bytes(b"half an upload")
    storage.leave_unfinished("w1/a1/home.tar.zst")
    assert len(storage.stored_names()) == 2
    await storage.done("archive", storage.archive_job())
    assert storage.stored_names() == ARCHIVE
    await storage.done("delete", storage.delete_job())
    await storage.done("restore", storage.restore_job())


@on_both_stores
async def test_an_archive_that_lost_its_object_is_made_again(storage: StorageFixture) -> None:
    await storage.make_home()
    await storage.done("archive", storage.archive_job())
    stored = storage.archives_root / "w1/a1/home.tar.zst"
    stored.unlink()
    await storage.done("again", storage.archive_job())
    assert stored.exists()
    assert await storage.store.find("w1", "a1") is not None


@on_both_stores
@pytest.mark.parametrize("meta", [b"", b"sha256:"], ids=["empty", "cut"])
async def test_a_meta_that_a_power_cut_has_damaged_is_written_again(
    storage: StorageFixture, meta: bytes
) -> None:
    await storage.make_home()
    place = storage.archives_root / "w1/a1"
    place.mkdir(parents=True)
    (place / "home.tar.zst").write_bytes(b"some of it")
    (place / ".meta").write_bytes(meta)
    if storage.server is None:  # a service gets it in one piece, of which nothing unfinished can stay
        storage.leave_unfinished("w1/a1/.meta")
    await storage.done("archive", storage.archive_job())
    assert await storage.store.find("w1", "a1") is not None
    assert storage.stored_names() == ARCHIVE


async def test_a_restore_that_would_use_up_the_reserve_is_refused(storage: StorageFixture) -> None:
    await storage.make_home()
    before = tree_hash(storage.home)
    await storage.done("archive", storage.archive_job())
    await storage.done("delete", storage.delete_job())
    more_than_there_is = 2 * shutil.disk_usage(storage.home.parent).total
    fact = await storage.run("restore", storage.restore_job(reserve=more_than_there_is))
    assert (fact.state, fact.reason) == (JobState.FAILED, ErrorReason.ActionFailed)
    assert "make room" in fact.message
    assert storage.beside_home() == {".lock", ".fence"}
    await storage.done("again", storage.restore_job())
    assert tree_hash(storage.home) == before


async def test_what_is_left_out_is_reported(storage: StorageFixture) -> None:
    await storage.make_home()
    os.mkfifo(storage.home / "pipe")
    fact = await storage.done("archive", storage.archive_job())
    message = "left out 1 pipe: it cannot be archived (./pipe)"
    assert fact.left_out == message and message in fact.message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")
async def test_a_restored_home_belongs_to_its_user_and_foreign_entries_are_reported(
    storage: StorageFixture,
) -> None:
    await storage.make_home()
    before = {path.relative_to(storage.home) for path in storage.home.rglob("*")}
    await storage.done("archive", storage.archive_job())
    await storage.done("delete", storage.delete_job())
    fact = await storage.done("restore", storage.restore_job(uid=3_000_001))
    restored = list(storage.home.rglob("*"))
    assert {path.relative_to(storage.home) for path in restored} == before
    assert {path.lstat().st_uid for path in [storage.home, *restored]} == {3_000_001}
    assert "of other users to the workspace's user" in fact.changed and fact.changed in fact.message


async def test_what_is_left_out_is_reported_by_the_attempt_that_finds_the_archive_complete(
    storage: StorageFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit reached the store, but the response was lost."""
    await storage.make_home()
    os.mkfifo(storage.home / "pipe")
    commit, answers = BlockingArchiveStore.commit, ["lost"]

    def commit_without_answer(self: BlockingArchiveStore, fact: ArchiveFact) -> None:
        commit(self, fact)
        if answers:
            raise StoreTrouble(answers.pop())

    monkeypatch.setattr(BlockingArchiveStore, "commit", commit_without_answer)
    monkeypatch.setattr(program, "_PAUSES", (0.0,))
    result = program._attempts(storage.archive_job(), JobContext(Reporter(storage.root), storage.root))
    assert (result.message, answers) == ("the archive was already complete", [])
    assert result.left_out == "left out 1 pipe: it cannot be archived (./pipe)"


@on_both_stores
async def test_an_empty_archive_restores_to_an_empty_home_of_its_user(storage: StorageFixture) -> None:
    await storage.done("empty", storage.empty_archive_job(uid=4242))
    assert await storage.volumes.status(KEY) is None
    await storage.done("restore", storage.restore_job())
    assert list(storage.home.iterdir()) == []
    assert storage.home.stat().st_mode & 0o7777 == 0o700
    if os.geteuid() == 0:
        assert (storage.home.stat().st_uid, storage.home.stat().st_gid) == (4242, 4242)


async def test_the_archive_of_a_new_home_holds_what_a_new_home_would(storage: StorageFixture) -> None:
    files = {".config/settings.json": "{}", "note": "한글"}
    await storage.done("empty", replace(storage.empty_archive_job(uid=4242), files=files))
    await storage.done("restore", storage.restore_job())
    from_archive = facts(storage.home)
    assert (storage.home / "note").read_text() == "한글"
    await storage.done("delete", storage.delete_job(RESTORED))
    await storage.volumes.provision(KEY, FIRST, epoch=1, uid=4242, files=files)
    assert facts(storage.home) == from_archive


def facts(home: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return mode, owner and content of everything in the home."""
    return {
        str(path.relative_to(home)): (
            path.stat().st_mode,
            path.stat().st_uid,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in (home, *home.rglob("*"))
    }


async def test_an_archive_of_another_generation_does_nothing(storage: StorageFixture) -> None:
    await storage.make_home()
    fact = await storage.run("archive", storage.archive_job(generation=Generation("other", None)))
    assert (fact.state, fact.reason) == (JobState.FAILED, ErrorReason.ActionFailed)
    assert "generation differs" in fact.message
    assert await storage.store.list() == []


async def test_an_archive_without_a_home_does_nothing(storage: StorageFixture) -> None:
    fact = await storage.run("archive", storage.archive_job())
    assert fact.state == JobState.FAILED
    assert await storage.store.list() == []


async def test_a_delete_of_another_generation_does_nothing(storage: StorageFixture) -> None:
    await storage.make_home()
    before = tree_hash(storage.home)
    fact = await storage.run("delete", storage.delete_job(Generation("other", None)))
    assert (fact.state, fact.reason) == (JobState.FAILED, ErrorReason.ActionFailed)
    assert tree_hash(storage.home) == before


async def test_a_delete_finishes_earlier_ones_and_a_missing_home_is_success(storage: StorageFixture) -> None:
    await storage.make_home()
    leftover = storage.home.parent / ".deleted-op0"
    leftover.mkdir()
    (leftover / "half").write_text("removed")
    kept = storage.home.parent / ".aside-op0"
    kept.mkdir()
    await storage.done("delete", storage.delete_job())
    assert storage.beside_home() == {".lock", ".fence", ".aside-op0"}
    fact = await storage.done("again", storage.delete_job())
    assert fact.message == "there was no home"


async def test_a_clear_removes_what_it_names_and_nothing_else(storage: StorageFixture) -> None:
    await storage.make_home()
    before = tree_hash(storage.home)
    for name in (".staging-op0", ".aside-op0", ".aside-op1"):
        (storage.home.parent / name / "deep").mkdir(parents=True)
    names = [".staging-op0", ".aside-op1", ".deleted-op9", "home", ".marker", "..", "../w1/home"]
    await storage.done("clear", ClearJob(storage.location, "w1", KEY, names, epoch=1))
    assert storage.beside_home() == {".lock", ".fence", ".marker", "home", ".aside-op0"}
    assert tree_hash(storage.home) == before


async def test_a_home_without_a_marker_is_deleted_only_on_request(storage: StorageFixture) -> None:
    await storage.make_home()
    unmarked = storage.delete_job(None)
    assert (await storage.run("marked", unmarked)).state == JobState.FAILED
    (storage.home.parent / ".marker").unlink()
    await storage.done("unmarked", unmarked)
    assert storage.beside_home() == {".lock", ".fence"}


async def test_a_delete_removes_very_deep_homes(storage: StorageFixture) -> None:
    await storage.volumes.provision(KEY, FIRST, epoch=1, uid=None)
    directory = os.open(storage.home, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deeper", dir_fd=directory)
        below = os.open("deeper", os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(directory)
    await storage.done("delete", storage.delete_job())
    assert storage.beside_home() == {".lock", ".fence"}


async def test_a_delete_removes_directories_without_permissions(storage: StorageFixture) -> None:
    await storage.volumes.provision(KEY, FIRST, epoch=1, uid=None)
    (storage.home / "outer" / "inner").mkdir(parents=True)
    (storage.home / "outer" / "inner" / "file").write_text("x")
    (storage.home / "outer" / "inner").chmod(0)
    (storage.home / "outer").chmod(0)
    await storage.done("delete", storage.delete_job())
    assert storage.beside_home() == {".lock", ".fence"}


async def test_an_immutable_file_is_reported(storage: StorageFixture) -> None:
    await storage.volumes.provision(KEY, FIRST, epoch=1, uid=None)
    (storage.home / "fixed").write_text("x")
    made = subprocess.run(["chattr", "+i", storage.home / "fixed"], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("immutable files cannot be made here")
    try:
        fact = await storage.run("delete", storage.delete_job())
        assert fact.state == JobState.FAILED
        assert "fixed" in fact.message
        assert "Operation not permitted" in fact.message
    finally:
        subprocess.run(["chattr", "-R", "-i", storage.home.parent], check=True)
    await storage.done("again", storage.delete_job())


async def test_a_restore_twice_is_one(storage: StorageFixture) -> None:
    await storage.done("empty", storage.empty_archive_job())
    await storage.done("first", storage.restore_job())
    (storage.home / "work").write_text("precious")
    fact = await storage.done("second", storage.restore_job())
    assert fact.message == "the home was already restored"
    assert (storage.home / "work").read_text() == "precious"


async def test_a_restore_leaves_a_ready_home_alone(storage: StorageFixture) -> None:
    await storage.make_home()
    before = tree_hash(storage.home)
    await storage.done("archive", storage.archive_job())
    fact = await storage.run("restore", storage.restore_job())
    assert (fact.state, fact.reason) == (JobState.FAILED, ErrorReason.ActionFailed)
    assert tree_hash(storage.home) == before
    assert await storage.volumes.status(KEY) == VolumeFact(FIRST)


async def test_a_restore_keeps_an_unmarked_home_aside_and_removes_dead_attempts(
    storage: StorageFixture,
) -> None:
    await storage.done("empty", storage.empty_archive_job())
    storage.home.mkdir()
    (storage.home / "work").write_text("nobody knows")
    (storage.home.parent / ".staging-op0").mkdir()
    (storage.home.parent / ".staging-op0" / "half").write_text("x")
    await storage.done("restore", storage.restore_job())
    assert (storage.home.parent / ".aside-op2" / "work").read_text() == "nobody knows"
    assert storage.beside_home() == {".lock", ".fence", ".marker", "home", ".aside-op2"}


@on_both_stores
@pytest.mark.parametrize("missing", ["home.tar.zst", ".meta"])
async def test_a_missing_archive_is_data_lost_and_an_unmarked_home_stays(
    storage: StorageFixture, missing: str
) -> None:
    await storage.done("empty", storage.empty_archive_job())
    (storage.archives_root / "w1/a1" / missing).unlink()
    storage.home.mkdir()
    fact = await storage.run("restore", storage.restore_job())
    assert (fact.state, fact.reason) == (JobState.FAILED, ErrorReason.DataLost)
    assert storage.home.exists()
    assert await storage.volumes.status(KEY) == VolumeFact(None)


@on_both_stores
async def test_a_corrupted_archive_is_reported_and_leaves_the_volume_untouched(
    storage: StorageFixture,
) -> None:
    await archive_and_damage(storage)
    fact = await storage.run("restore", storage.restore_job())
    assert (fact.state, fact.reason) == (JobState.FAILED, ErrorReason.ArchiveCorrupted)
    assert storage.beside_home() == {".lock", ".fence"}


@on_both_stores
async def test_a_corrupted_archive_leaves_an_unmarked_home_where_it_is(storage: StorageFixture) -> None:
    await archive_and_damage(storage)
    make_tree(storage.home, seed=2)
    before = tree_hash(storage.home)
    fact = await storage.run("restore", storage.restore_job())
    assert (fact.state, fact.reason) == (JobState.FAILED, ErrorReason.ArchiveCorrupted)
    assert storage.beside_home() == {".lock", ".fence", "home"}
    assert tree_hash(storage.home) == before
    assert await storage.volumes.status(KEY) == VolumeFact(None)


async def archive_and_damage(storage: StorageFixture) -> None:
    """Leave a home only in the store, with one bit flipped."""
    await storage.make_home()
    await storage.done("archive", storage.archive_job())
    await storage.done("delete", storage.delete_job())
    stored = storage.archives_root / "w1/a1/home.tar.zst"
    stored.write_bytes(flip_a_bit(stored.read_bytes()))


@on_both_stores
async def test_an_archive_that_is_not_the_committed_one_is_corrupted(storage: StorageFixture) -> None:
    await storage.done("empty", storage.empty_archive_job())
    fact = await storage.run("restore", storage.restore_job(sha256="0" * 64))
    assert (fact.state, fact.reason) == (JobState.FAILED, ErrorReason.ArchiveCorrupted)
    assert await storage.volumes.status(KEY) is None


async def test_a_restore_of_another_workspaces_archive_is_refused(storage: StorageFixture) -> None:
    fact = await storage.run("restore", storage.restore_job(archive_key="w2/a1/home.tar.zst"))
    assert fact.state == JobState.FAILED
    assert await storage.volumes.status(KEY) is None


async def test_a_late_leaders_jobs_do_nothing(storage: StorageFixture) -> None:
    await storage.make_home()
    before = tree_hash(storage.home)
    async with storage.volumes.hold(KEY, epoch=9):
        pass
    for number, spec in enumerate([storage.archive_job(), storage.delete_job(), storage.restore_job()]):
        fact = await storage.run(f"job{number}", spec)
        assert fact.state is JobState.GONE, "the leader of today would count a failure"
        assert "epoch 1 is over" in (storage.root / "jobs" / f"job{number}" / "log").read_text()
    assert tree_hash(storage.home) == before
    assert await storage.store.list() == []


@on_both_stores
async def test_a_store_that_is_away_is_tried_three_times_and_unreachable(storage: StorageFixture) -> None:
    await storage.make_home()
    before = tree_hash(storage.home)
    (storage.archives_root / ".codehub-installation").unlink()
    fact = await storage.run("archive", storage.archive_job())
    assert (fact.state, fact.reason) == (JobState.FAILED, ErrorReason.Unreachable)
    assert storage.log("archive").count("trying again") == 2
    assert tree_hash(storage.home) == before


async def test_a_volumes_disk_that_is_away_is_not_written_to(storage: StorageFixture) -> None:
    await storage.done("empty", storage.empty_archive_job())
    (storage.location.volumes_root / ".codehub-installation").unlink()
    fact = await storage.run("restore", storage.restore_job())
    assert (fact.state, fact.reason) == (JobState.FAILED, ErrorReason.Unreachable)
    assert not storage.home.exists()


def flip_a_bit(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize("damage", [flip_a_bit, lambda data: data[:-1], lambda data: data + b"\0"])
async def test_an_archive_that_reads_back_differently_is_not_committed(
    storage: StorageFixture, damage: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    await storage.make_home()
    before = tree_hash(storage.home)
    flush = LocalObjectStore.flush

    def keep_differently(self: LocalObjectStore, path: str) -> None:
        flush(self, path)
        if path.endswith("home.tar.zst"):
            stored = storage.archives_root / path
            stored.write_bytes(damage(stored.read_bytes()))

    monkeypatch.setattr(LocalObjectStore, "flush", keep_differently)
    context = JobContext(Reporter(storage.root), storage.root)
    with pytest.raises(StoreTrouble, match="reads back differently"):
        await asyncio.to_thread(run_job, storage.archive_job(), context)
    assert await storage.store.find("w1", "a1") is None
    assert tree_hash(storage.home) == before

    monkeypatch.undo()
    await asyncio.to_thread(run_job, storage.archive_job(), context)
    await storage.done("delete", storage.delete_job())
    await storage.done("restore", storage.restore_job())
    assert tree_hash(storage.home) == before
