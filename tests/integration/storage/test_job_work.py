"""What storage jobs do to homes and archives, and what they refuse to do; as real processes."""

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
from codehub.storage.archive.archives import Archives
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
async def test_a_home_goes_to_the_store_and_comes_back(site: StorageFixture) -> None:
    await site.make_home()
    before = tree_hash(site.home)
    fact = await site.done("archive", site.archive_job())
    assert fact.message.startswith("archived ")
    archive = await site.store.find("w1", "a1")
    assert archive is not None
    assert tree_hash(site.home) == before
    assert await site.volumes.status(KEY) == VolumeFact(FIRST)

    await site.done("delete", site.delete_job())
    assert await site.volumes.status(KEY) is None
    assert site.beside_home() == {".lock", ".fence"}

    await site.done("restore", site.restore_job(sha256=archive.sha256))
    assert await site.volumes.status(KEY) == VolumeFact(RESTORED)
    assert tree_hash(site.home) == before
    assert site.beside_home() == {".lock", ".fence", ".marker", "home"}


@on_both_stores
async def test_a_second_archive_of_the_same_operation_uploads_nothing(site: StorageFixture) -> None:
    await site.make_home()
    await site.done("first", site.archive_job())
    stored = (site.archives_root / "w1/a1/home.tar.zst").stat()
    (site.home / "later").write_text("written after the archive")
    fact = await site.done("second", site.archive_job())
    assert fact.message == "the archive was already complete"
    again = (site.archives_root / "w1/a1/home.tar.zst").stat()
    assert (again.st_ino, again.st_mtime_ns) == (stored.st_ino, stored.st_mtime_ns)


@on_both_stores
async def test_an_object_without_meta_is_overwritten(site: StorageFixture) -> None:
    await site.make_home()
    (site.archives_root / "w1/a1").mkdir(parents=True)
    (site.archives_root / "w1/a1/home.tar.zst").write_bytes(b"half an upload")
    site.leave_unfinished("w1/a1/home.tar.zst")
    assert len(site.stored_names()) == 2
    await site.done("archive", site.archive_job())
    assert site.stored_names() == ARCHIVE
    await site.done("delete", site.delete_job())
    await site.done("restore", site.restore_job())


@on_both_stores
async def test_an_archive_that_lost_its_object_is_made_anew(site: StorageFixture) -> None:
    await site.make_home()
    await site.done("archive", site.archive_job())
    stored = site.archives_root / "w1/a1/home.tar.zst"
    stored.unlink()
    await site.done("again", site.archive_job())
    assert stored.exists()
    assert await site.store.find("w1", "a1") is not None


@on_both_stores
@pytest.mark.parametrize("meta", [b"", b"sha256:"], ids=["empty", "cut"])
async def test_a_meta_that_a_power_cut_has_spoiled_is_written_again(site: StorageFixture, meta: bytes) -> None:
    await site.make_home()
    place = site.archives_root / "w1/a1"
    place.mkdir(parents=True)
    (place / "home.tar.zst").write_bytes(b"some of it")
    (place / ".meta").write_bytes(meta)
    if site.server is None:  # a service gets it in one piece, of which nothing unfinished can stay
        site.leave_unfinished("w1/a1/.meta")
    await site.done("archive", site.archive_job())
    assert await site.store.find("w1", "a1") is not None
    assert site.stored_names() == ARCHIVE


async def test_a_restore_that_would_use_up_the_reserve_is_refused(site: StorageFixture) -> None:
    await site.make_home()
    before = tree_hash(site.home)
    await site.done("archive", site.archive_job())
    await site.done("delete", site.delete_job())
    more_than_there_is = 2 * shutil.disk_usage(site.home.parent).total
    fact = await site.run("restore", site.restore_job(reserve=more_than_there_is))
    assert (fact.state, fact.reason) == (JobState.FAILED, ErrorReason.ActionFailed)
    assert "make room" in fact.message
    assert site.beside_home() == {".lock", ".fence"}
    await site.done("again", site.restore_job())
    assert tree_hash(site.home) == before


async def test_what_is_left_out_is_told(site: StorageFixture) -> None:
    await site.make_home()
    os.mkfifo(site.home / "pipe")
    fact = await site.done("archive", site.archive_job())
    told = "left out 1 pipe: it cannot be archived (./pipe)"
    assert fact.left_out == told and told in fact.message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")
async def test_a_restored_home_belongs_to_its_user_and_what_did_not_is_told(site: StorageFixture) -> None:
    await site.make_home()
    before = {path.relative_to(site.home) for path in site.home.rglob("*")}
    await site.done("archive", site.archive_job())
    await site.done("delete", site.delete_job())
    fact = await site.done("restore", site.restore_job(uid=3_000_001))
    restored = list(site.home.rglob("*"))
    assert {path.relative_to(site.home) for path in restored} == before
    assert {path.lstat().st_uid for path in [site.home, *restored]} == {3_000_001}
    assert "of other users to the workspace's user" in fact.changed and fact.changed in fact.message


async def test_what_is_left_out_is_told_by_the_attempt_that_finds_the_archive_complete(
    site: StorageFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit reached the store, and its answer was lost."""
    await site.make_home()
    os.mkfifo(site.home / "pipe")
    commit, answers = Archives.commit, ["lost"]

    def commit_without_answer(self: Archives, fact: ArchiveFact) -> None:
        commit(self, fact)
        if answers:
            raise StoreTrouble(answers.pop())

    monkeypatch.setattr(Archives, "commit", commit_without_answer)
    monkeypatch.setattr(program, "_PAUSES", (0.0,))
    result = program._attempts(site.archive_job(), JobContext(Reporter(site.root), site.root))
    assert (result.message, answers) == ("the archive was already complete", [])
    assert result.left_out == "left out 1 pipe: it cannot be archived (./pipe)"


@on_both_stores
async def test_an_empty_archive_restores_to_an_empty_home_of_its_user(site: StorageFixture) -> None:
    await site.done("empty", site.empty_archive_job(uid=4242))
    assert await site.volumes.status(KEY) is None
    await site.done("restore", site.restore_job())
    assert list(site.home.iterdir()) == []
    assert site.home.stat().st_mode & 0o7777 == 0o700
    if os.geteuid() == 0:
        assert (site.home.stat().st_uid, site.home.stat().st_gid) == (4242, 4242)


async def test_the_archive_of_a_new_home_holds_what_a_new_home_would(site: StorageFixture) -> None:
    files = {".config/settings.json": "{}", "note": "한글"}
    await site.done("empty", replace(site.empty_archive_job(uid=4242), files=files))
    await site.done("restore", site.restore_job())
    from_archive = facts(site.home)
    assert (site.home / "note").read_text() == "한글"
    await site.done("delete", site.delete_job(RESTORED))
    await site.volumes.provision(KEY, FIRST, epoch=1, uid=4242, files=files)
    assert facts(site.home) == from_archive


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


async def test_an_archive_of_another_generation_does_nothing(site: StorageFixture) -> None:
    await site.make_home()
    fact = await site.run("archive", site.archive_job(generation=Generation("other", None)))
    assert (fact.state, fact.reason) == (JobState.FAILED, ErrorReason.ActionFailed)
    assert "generation differs" in fact.message
    assert await site.store.list() == []


async def test_an_archive_without_a_home_does_nothing(site: StorageFixture) -> None:
    fact = await site.run("archive", site.archive_job())
    assert fact.state == JobState.FAILED
    assert await site.store.list() == []


async def test_a_delete_of_another_generation_does_nothing(site: StorageFixture) -> None:
    await site.make_home()
    before = tree_hash(site.home)
    fact = await site.run("delete", site.delete_job(Generation("other", None)))
    assert (fact.state, fact.reason) == (JobState.FAILED, ErrorReason.ActionFailed)
    assert tree_hash(site.home) == before


async def test_a_delete_finishes_earlier_ones_and_a_missing_home_is_success(site: StorageFixture) -> None:
    await site.make_home()
    leftover = site.home.parent / ".deleted-op0"
    leftover.mkdir()
    (leftover / "half").write_text("removed")
    kept = site.home.parent / ".aside-op0"
    kept.mkdir()
    await site.done("delete", site.delete_job())
    assert site.beside_home() == {".lock", ".fence", ".aside-op0"}
    fact = await site.done("again", site.delete_job())
    assert fact.message == "there was no home"


async def test_a_clear_removes_what_it_names_and_nothing_else(site: StorageFixture) -> None:
    await site.make_home()
    before = tree_hash(site.home)
    for name in (".staging-op0", ".aside-op0", ".aside-op1"):
        (site.home.parent / name / "deep").mkdir(parents=True)
    names = [".staging-op0", ".aside-op1", ".deleted-op9", "home", ".marker", "..", "../w1/home"]
    await site.done("clear", ClearJob(site.location, "w1", KEY, names, epoch=1))
    assert site.beside_home() == {".lock", ".fence", ".marker", "home", ".aside-op0"}
    assert tree_hash(site.home) == before


async def test_a_home_without_a_marker_is_deleted_only_when_that_is_meant(site: StorageFixture) -> None:
    await site.make_home()
    unmarked = site.delete_job(None)
    assert (await site.run("marked", unmarked)).state == JobState.FAILED
    (site.home.parent / ".marker").unlink()
    await site.done("unmarked", unmarked)
    assert site.beside_home() == {".lock", ".fence"}


async def test_a_delete_copes_with_very_deep_homes(site: StorageFixture) -> None:
    await site.volumes.provision(KEY, FIRST, epoch=1, uid=None)
    directory = os.open(site.home, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deeper", dir_fd=directory)
        below = os.open("deeper", os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(directory)
    await site.done("delete", site.delete_job())
    assert site.beside_home() == {".lock", ".fence"}


async def test_a_delete_copes_with_folders_without_permissions(site: StorageFixture) -> None:
    await site.volumes.provision(KEY, FIRST, epoch=1, uid=None)
    (site.home / "outer" / "inner").mkdir(parents=True)
    (site.home / "outer" / "inner" / "file").write_text("x")
    (site.home / "outer" / "inner").chmod(0)
    (site.home / "outer").chmod(0)
    await site.done("delete", site.delete_job())
    assert site.beside_home() == {".lock", ".fence"}


async def test_an_immutable_file_is_reported(site: StorageFixture) -> None:
    await site.volumes.provision(KEY, FIRST, epoch=1, uid=None)
    (site.home / "fixed").write_text("x")
    made = subprocess.run(["chattr", "+i", site.home / "fixed"], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("immutable files cannot be made here")
    try:
        fact = await site.run("delete", site.delete_job())
        assert fact.state == JobState.FAILED
        assert "fixed" in fact.message
        assert "Operation not permitted" in fact.message
    finally:
        subprocess.run(["chattr", "-R", "-i", site.home.parent], check=True)
    await site.done("again", site.delete_job())


async def test_a_restore_twice_is_one(site: StorageFixture) -> None:
    await site.done("empty", site.empty_archive_job())
    await site.done("first", site.restore_job())
    (site.home / "work").write_text("precious")
    fact = await site.done("second", site.restore_job())
    assert fact.message == "the home was already restored"
    assert (site.home / "work").read_text() == "precious"


async def test_a_restore_leaves_a_ready_home_alone(site: StorageFixture) -> None:
    await site.make_home()
    before = tree_hash(site.home)
    await site.done("archive", site.archive_job())
    fact = await site.run("restore", site.restore_job())
    assert (fact.state, fact.reason) == (JobState.FAILED, ErrorReason.ActionFailed)
    assert tree_hash(site.home) == before
    assert await site.volumes.status(KEY) == VolumeFact(FIRST)


async def test_a_restore_keeps_an_unmarked_home_aside_and_removes_dead_attempts(site: StorageFixture) -> None:
    await site.done("empty", site.empty_archive_job())
    site.home.mkdir()
    (site.home / "work").write_text("nobody knows")
    (site.home.parent / ".staging-op0").mkdir()
    (site.home.parent / ".staging-op0" / "half").write_text("x")
    await site.done("restore", site.restore_job())
    assert (site.home.parent / ".aside-op2" / "work").read_text() == "nobody knows"
    assert site.beside_home() == {".lock", ".fence", ".marker", "home", ".aside-op2"}


@on_both_stores
@pytest.mark.parametrize("missing", ["home.tar.zst", ".meta"])
async def test_a_missing_archive_is_data_lost_and_an_unmarked_home_stays(site: StorageFixture, missing: str) -> None:
    await site.done("empty", site.empty_archive_job())
    (site.archives_root / "w1/a1" / missing).unlink()
    site.home.mkdir()
    fact = await site.run("restore", site.restore_job())
    assert (fact.state, fact.reason) == (JobState.FAILED, ErrorReason.DataLost)
    assert site.home.exists()
    assert await site.volumes.status(KEY) == VolumeFact(None)


@on_both_stores
async def test_a_corrupted_archive_is_said_so_and_leaves_the_volume_untouched(site: StorageFixture) -> None:
    await archive_and_spoil(site)
    fact = await site.run("restore", site.restore_job())
    assert (fact.state, fact.reason) == (JobState.FAILED, ErrorReason.ArchiveCorrupted)
    assert site.beside_home() == {".lock", ".fence"}


@on_both_stores
async def test_a_corrupted_archive_leaves_an_unmarked_home_where_it_is(site: StorageFixture) -> None:
    await archive_and_spoil(site)
    make_tree(site.home, seed=2)
    before = tree_hash(site.home)
    fact = await site.run("restore", site.restore_job())
    assert (fact.state, fact.reason) == (JobState.FAILED, ErrorReason.ArchiveCorrupted)
    assert site.beside_home() == {".lock", ".fence", "home"}
    assert tree_hash(site.home) == before
    assert await site.volumes.status(KEY) == VolumeFact(None)


async def archive_and_spoil(site: StorageFixture) -> None:
    """A home that is in the store only, and there with another bit."""
    await site.make_home()
    await site.done("archive", site.archive_job())
    await site.done("delete", site.delete_job())
    stored = site.archives_root / "w1/a1/home.tar.zst"
    stored.write_bytes(flip_a_bit(stored.read_bytes()))


@on_both_stores
async def test_an_archive_that_is_not_the_committed_one_is_corrupted(site: StorageFixture) -> None:
    await site.done("empty", site.empty_archive_job())
    fact = await site.run("restore", site.restore_job(sha256="0" * 64))
    assert (fact.state, fact.reason) == (JobState.FAILED, ErrorReason.ArchiveCorrupted)
    assert await site.volumes.status(KEY) is None


async def test_a_restore_of_another_workspaces_archive_is_refused(site: StorageFixture) -> None:
    fact = await site.run("restore", site.restore_job(archive_key="w2/a1/home.tar.zst"))
    assert fact.state == JobState.FAILED
    assert await site.volumes.status(KEY) is None


async def test_a_late_leaders_jobs_do_nothing(site: StorageFixture) -> None:
    await site.make_home()
    before = tree_hash(site.home)
    async with site.volumes.hold(KEY, epoch=9):
        pass
    for number, spec in enumerate([site.archive_job(), site.delete_job(), site.restore_job()]):
        fact = await site.run(f"job{number}", spec)
        assert fact.state is JobState.GONE, "the leader of today would count a failure"
        assert "epoch 1 is over" in (site.root / "jobs" / f"job{number}" / "log").read_text()
    assert tree_hash(site.home) == before
    assert await site.store.list() == []


@on_both_stores
async def test_a_store_that_is_away_is_tried_three_times_and_unreachable(site: StorageFixture) -> None:
    await site.make_home()
    before = tree_hash(site.home)
    (site.archives_root / ".codehub-installation").unlink()
    fact = await site.run("archive", site.archive_job())
    assert (fact.state, fact.reason) == (JobState.FAILED, ErrorReason.Unreachable)
    assert site.log("archive").count("trying again") == 2
    assert tree_hash(site.home) == before


async def test_a_volumes_disk_that_is_away_is_not_written_to(site: StorageFixture) -> None:
    await site.done("empty", site.empty_archive_job())
    (site.location.volumes_root / ".codehub-installation").unlink()
    fact = await site.run("restore", site.restore_job())
    assert (fact.state, fact.reason) == (JobState.FAILED, ErrorReason.Unreachable)
    assert not site.home.exists()


def flip_a_bit(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize("spoil", [flip_a_bit, lambda data: data[:-1], lambda data: data + b"\0"])
async def test_what_a_disk_has_kept_differently_is_not_committed(
    site: StorageFixture, spoil: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.make_home()
    before = tree_hash(site.home)
    flush = LocalObjectStore.flush

    def keep_differently(self: LocalObjectStore, path: str) -> None:
        flush(self, path)
        if path.endswith("home.tar.zst"):
            stored = site.archives_root / path
            stored.write_bytes(spoil(stored.read_bytes()))

    monkeypatch.setattr(LocalObjectStore, "flush", keep_differently)
    context = JobContext(Reporter(site.root), site.root)
    with pytest.raises(StoreTrouble, match="reads back differently"):
        await asyncio.to_thread(run_job, site.archive_job(), context)
    assert await site.store.find("w1", "a1") is None
    assert tree_hash(site.home) == before

    monkeypatch.undo()
    await asyncio.to_thread(run_job, site.archive_job(), context)
    await site.done("delete", site.delete_job())
    await site.done("restore", site.restore_job())
    assert tree_hash(site.home) == before
