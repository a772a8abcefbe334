"""Volumes: ready means home and marker, and only the expected generation is touched."""

import asyncio
import os
from pathlib import Path

import pytest

from codehub.domain.disk import FreeSpace
from codehub.domain.observation import Generation, Unknown, VolumeFact
from codehub.storage.errors import GenerationMismatch, InvalidKey, StaleEpoch, Unobservable, VolumeBusy
from codehub.storage.volumes.local_volumes import LocalVolumes
from codehub.storage.volumes.workspace_directory import WorkspaceDirectory
from tests.waiting import eventually

KEY = "users/u1/workspaces/w1/home"
FIRST = Generation("op1", None)
SECOND = Generation("op2", "w1/a1/home.tar.zst")


@pytest.fixture
def volumes(tmp_path: Path) -> LocalVolumes:
    volumes = LocalVolumes(tmp_path / "volumes", "installation-1")
    volumes.initialise()
    return volumes


async def test_a_provisioned_home_is_empty_private_and_ready(volumes: LocalVolumes) -> None:
    assert await volumes.observe() == {}
    await volumes.provision(KEY, FIRST, epoch=1, uid=4242)
    home = volumes.path(KEY)
    assert list(home.iterdir()) == []
    assert home.stat().st_mode & 0o7777 == 0o700
    if os.geteuid() == 0:
        assert (home.stat().st_uid, home.stat().st_gid) == (4242, 4242)
    assert await volumes.status(KEY) == VolumeFact(FIRST)
    assert await volumes.observe() == {"w1": VolumeFact(FIRST)}


async def test_a_new_home_holds_its_images_files_which_belong_to_its_user(volumes: LocalVolumes) -> None:
    umask = os.umask(0o077)
    try:
        await volumes.provision(
            KEY, FIRST, epoch=1, uid=4242, files={"a/b/c": "text", "a/d": "", "e": "한글"}
        )
    finally:
        os.umask(umask)
    home = volumes.path(KEY)
    found = {str(path.relative_to(home)): path for path in home.rglob("*")}
    assert set(found) == {"a", "a/b", "a/b/c", "a/d", "e"}
    assert (found["a/b/c"].read_text(), found["e"].read_text()) == ("text", "한글")
    for path in found.values():
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644)
        assert path.stat().st_uid == (4242 if os.geteuid() == 0 else os.geteuid())
    assert home.stat().st_mode & 0o777 == 0o700


async def test_a_home_that_exists_keeps_its_files(volumes: LocalVolumes) -> None:
    await volumes.provision(KEY, FIRST, epoch=1, uid=None, files={"settings": "ours"})
    settings = volumes.path(KEY) / "settings"
    settings.write_text("theirs")
    await volumes.provision(KEY, FIRST, epoch=1, uid=None, files={"settings": "ours", "more": ""})
    assert settings.read_text() == "theirs"
    settings.unlink()
    await volumes.provision(KEY, FIRST, epoch=2, uid=None, files={"settings": "ours"})
    assert list(volumes.path(KEY).iterdir()) == []


async def test_leftovers_of_a_killed_provision_are_replaced(volumes: LocalVolumes) -> None:
    left = volumes.path(KEY).parent / ".staging-op1"
    left.mkdir(parents=True)
    (left / "settings").symlink_to("/etc/hostname")
    await volumes.provision(KEY, FIRST, epoch=1, uid=None, files={"settings": "ours"})
    settings = volumes.path(KEY) / "settings"
    assert settings.read_text() == "ours" and not settings.is_symlink()


async def test_other_users_can_pass_through_to_a_home_but_list_nothing(volumes: LocalVolumes) -> None:
    await volumes.provision(KEY, FIRST, epoch=1, uid=None)
    way = volumes.path(KEY).parent
    while way.name != "volumes":
        assert way.stat().st_mode & 0o777 == 0o711
        way = way.parent


async def test_provisioning_twice_keeps_what_is_in_the_home(volumes: LocalVolumes) -> None:
    await volumes.provision(KEY, FIRST, epoch=1, uid=None)
    (volumes.path(KEY) / "work").write_text("precious")
    await volumes.provision(KEY, FIRST, epoch=1, uid=None)
    assert (volumes.path(KEY) / "work").read_text() == "precious"


async def test_a_home_of_another_generation_is_left_as_it_is(volumes: LocalVolumes) -> None:
    await volumes.provision(KEY, FIRST, epoch=1, uid=None)
    (volumes.path(KEY) / "work").write_text("precious")
    with pytest.raises(GenerationMismatch):
        await volumes.provision(KEY, SECOND, epoch=2, uid=None)
    assert await volumes.status(KEY) == VolumeFact(FIRST)
    assert (volumes.path(KEY) / "work").read_text() == "precious"


@pytest.mark.parametrize("marker", [None, b"", b"{}", b"[]", b"null", b'{"op_id": 1, "archive_key": null}'])
async def test_a_home_without_a_marker_is_not_ready_and_kept_aside(
    volumes: LocalVolumes, marker: bytes | None
) -> None:
    home = volumes.path(KEY)
    home.mkdir(parents=True)
    (home / "work").write_text("precious")
    if marker is not None:
        (home.parent / ".marker").write_bytes(marker)
    assert await volumes.status(KEY) == VolumeFact(None)
    await volumes.provision(KEY, FIRST, epoch=1, uid=None)
    assert await volumes.status(KEY) == VolumeFact(FIRST)
    assert (home.parent / ".aside-op1" / "work").read_text() == "precious"


async def test_a_home_that_is_set_aside_replaces_no_earlier_one(volumes: LocalVolumes) -> None:
    for content in ("one", "two"):
        home = volumes.path(KEY)
        home.mkdir(parents=True)
        (home / "work").write_text(content)
        WorkspaceDirectory.of_key(home.parents[4], KEY).set_aside("op1")
    assert (home.parent / ".aside-op1" / "work").read_text() == "one"
    assert (home.parent / ".aside-op1-2" / "work").read_text() == "two"


async def test_a_home_is_set_aside_only_if_its_generation_is_given(volumes: LocalVolumes) -> None:
    await volumes.provision(KEY, FIRST, epoch=1, uid=None)
    (volumes.path(KEY) / "work").write_text("precious")
    with pytest.raises(GenerationMismatch):
        await volumes.set_aside(KEY, SECOND, epoch=2)
    with pytest.raises(StaleEpoch):
        await volumes.set_aside(KEY, FIRST, epoch=1)
    for _ in range(2):
        await volumes.set_aside(KEY, FIRST, epoch=2)
    assert await volumes.status(KEY) is None
    await volumes.provision(KEY, SECOND, epoch=2, uid=None)
    assert await volumes.status(KEY) == VolumeFact(SECOND)
    assert (volumes.path(KEY).parent / ".aside-op1" / "work").read_text() == "precious"


async def test_a_marker_without_a_home_is_not_a_volume(volumes: LocalVolumes) -> None:
    await volumes.provision(KEY, FIRST, epoch=1, uid=None)
    volumes.path(KEY).rmdir()
    assert await volumes.status(KEY) is None
    assert await volumes.observe() == {}
    await volumes.provision(KEY, SECOND, epoch=1, uid=None)
    assert await volumes.status(KEY) == VolumeFact(SECOND)


async def test_a_late_leader_is_fenced_out(volumes: LocalVolumes) -> None:
    async with volumes.hold(KEY, epoch=5):
        pass
    with pytest.raises(StaleEpoch):
        async with volumes.hold(KEY, epoch=4):
            pytest.fail("a late leader was not rejected")
    with pytest.raises(StaleEpoch):
        await volumes.provision(KEY, FIRST, epoch=4, uid=None)
    assert await volumes.status(KEY) is None
    async with volumes.hold(KEY, epoch=5):
        pass
    async with volumes.hold(KEY, epoch=6):
        pass


async def test_a_home_that_is_locked_is_busy_for_others(volumes: LocalVolumes) -> None:
    async with volumes.hold(KEY, epoch=1):
        with pytest.raises(VolumeBusy):
            async with volumes.hold(KEY, epoch=1):
                pytest.fail("two processes hold one home")
        with pytest.raises(VolumeBusy):
            await volumes.provision(KEY, FIRST, epoch=1, uid=None)
        async with volumes.hold("users/u1/workspaces/w2/home", epoch=1):
            pass
    async with volumes.hold(KEY, epoch=1):
        pass


async def test_a_cancelled_hold_releases_the_lock(volumes: LocalVolumes) -> None:
    async def hold() -> None:
        async with volumes.hold(KEY, epoch=1):
            await asyncio.Event().wait()

    for turns in range(6):
        task = asyncio.create_task(hold())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await _eventually_free(volumes)


async def _eventually_free(volumes: LocalVolumes) -> None:
    async def is_free() -> bool:
        try:
            async with volumes.hold(KEY, epoch=1):
                return True
        except VolumeBusy:
            return False

    await eventually(is_free, "the lock to be released")


async def test_a_missing_disk_is_unknown_not_empty(tmp_path: Path) -> None:
    missing = LocalVolumes(tmp_path / "missing", "installation-1")
    (tmp_path / "unmarked").mkdir()
    unmarked = LocalVolumes(tmp_path / "unmarked", "installation-1")
    for volumes in (missing, unmarked):
        with pytest.raises(Unobservable):
            await volumes.observe()
        with pytest.raises(Unobservable):
            await volumes.status(KEY)
        with pytest.raises(Unobservable):
            await volumes.provision(KEY, FIRST, epoch=1, uid=None)
        with pytest.raises(Unobservable):
            async with volumes.hold(KEY, epoch=1):
                pytest.fail("held on a missing disk")
    assert not (tmp_path / "missing").exists()
    assert list((tmp_path / "unmarked").iterdir()) == []


async def test_a_home_that_cannot_be_read_hides_no_other(volumes: LocalVolumes, tmp_path: Path) -> None:
    other = "users/u1/workspaces/w2/home"
    await volumes.provision(KEY, FIRST, epoch=1, uid=None)
    await volumes.provision(other, FIRST, epoch=1, uid=None)
    volumes.path(other).rmdir()
    volumes.path(other).symlink_to(tmp_path)
    seen = await volumes.observe()
    assert seen["w1"] == VolumeFact(FIRST)
    assert isinstance(seen["w2"], Unknown) and "not a directory" in seen["w2"].message
    with pytest.raises(Unobservable, match="not a directory"):
        await volumes.status(other)
    assert [item.workspace_id for item in await volumes.leftovers()] == ["w1"]


async def test_a_disk_of_another_installation_is_not_used(volumes: LocalVolumes, tmp_path: Path) -> None:
    other = LocalVolumes(tmp_path / "volumes", "installation-2")
    with pytest.raises(Unobservable, match="another"):
        other.initialise()
    with pytest.raises(Unobservable, match="another"):
        await other.observe()
    volumes.initialise()


def test_a_root_that_holds_something_is_not_claimed(tmp_path: Path) -> None:
    (tmp_path / "volumes" / "users").mkdir(parents=True)
    with pytest.raises(Unobservable):
        LocalVolumes(tmp_path / "volumes", "installation-1").initialise()
    assert not (tmp_path / "volumes" / ".codehub-installation").exists()


def test_a_fresh_file_system_is_claimed(tmp_path: Path) -> None:
    (tmp_path / "volumes" / "lost+found").mkdir(parents=True)
    LocalVolumes(tmp_path / "volumes", "installation-1").initialise()


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/etc",
        "home",
        "users/../workspaces/w/home",
        "users/u/workspaces/../home",
        "users/u/workspaces/w/home/..",
        "users/u/workspaces/w/home\n",
        "users/u/workspaces/w/other",
        "users/u/x/workspaces/w/home",
        "users/.u/workspaces/w/home",
    ],
)
def test_a_key_that_is_not_of_a_home_is_refused(volumes: LocalVolumes, key: str) -> None:
    with pytest.raises(InvalidKey):
        volumes.path(key)


async def test_a_home_that_is_not_a_directory_is_unknown(volumes: LocalVolumes, tmp_path: Path) -> None:
    home = volumes.path(KEY)
    home.parent.mkdir(parents=True)
    home.symlink_to(tmp_path)
    with pytest.raises(Unobservable):
        await volumes.status(KEY)


async def test_free_space_is_that_of_the_disk_in_bytes_and_files(
    volumes: LocalVolumes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await volumes.free_space()).bytes > 0
    for inodes, free, expected in ((1000, 12, 12), (1000, 0, 0), (0, 0, None)):
        disk = os.statvfs_result((4096, 4096, 9, 8, 7, inodes, free + 5, free, 0, 255))
        monkeypatch.setattr(os, "statvfs", lambda _path, disk=disk: disk)
        assert await volumes.free_space() == FreeSpace(7 * 4096, expected)
