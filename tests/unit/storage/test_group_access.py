"""Read access of a group to a store in a directory."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from codehub.storage.archive.archives import BlockingArchiveStore
from codehub.storage.archive.group_access import GroupInUse, is_shared, share_with_group
from codehub.storage.archive.local_object_store import LocalObjectStore

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other groups")
GROUP, OTHER_GROUP = 1_234_567, 1_234_568
KEY = "w1/a1/home.tar.zst"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    before = os.umask(0o077)
    BlockingArchiveStore(f"file://{tmp_path}/archives", "installation-1").initialise()
    yield tmp_path / "archives"
    os.umask(before)


def permissions(path: Path) -> tuple[int, int]:
    facts = path.lstat()
    return facts.st_gid, stat.S_IMODE(facts.st_mode)


def of_all(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path.relative_to(root)): permissions(path) for path in (root, *root.rglob("*"))}


SHARED = {
    ".": (GROUP, 0o2750),
    ".codehub-installation": (GROUP, 0o640),
    "w1": (GROUP, 0o2750),
    "w1/a1": (GROUP, 0o2750),
    KEY: (GROUP, 0o640),
}


def test_what_is_stored_before_and_after_is_readable_whatever_the_umask(root: Path) -> None:
    store = LocalObjectStore(root)
    store.upload(KEY, [b"old"], lambda: 0)
    assert permissions(root / KEY) == (os.getegid(), 0o600)
    assert not is_shared(root)
    share_with_group(root, GROUP)
    assert is_shared(root) and of_all(root) == SHARED

    store.remove(KEY)
    store.remove_unfinished(KEY)
    store.upload(KEY, [b"new"], lambda: 0)
    assert of_all(root) == SHARED
    store.write("w1/a1/.meta", b"meta")
    assert permissions(root / "w1/a1/.meta") == (GROUP, 0o640)
    share_with_group(root, GROUP)
    assert store.read(KEY) == b"new"


def test_a_directory_that_is_open_to_another_group_stays_as_it_is(root: Path) -> None:
    LocalObjectStore(root).upload(KEY, [b"old"], lambda: 0)
    os.chown(root, -1, OTHER_GROUP)
    root.chmod(0o750)
    before = of_all(root)
    with pytest.raises(GroupInUse, match=f"open to the group {OTHER_GROUP}"):
        share_with_group(root, GROUP)
    assert of_all(root) == before
    os.chown(root, -1, GROUP)  # as the warning says
    share_with_group(root, GROUP)
    assert of_all(root) == SHARED


def test_an_entry_that_stays_as_it_is_does_not_keep_others_from_being_shared(root: Path) -> None:
    LocalObjectStore(root).upload(KEY, [b"old"], lambda: 0)
    foreign = root / "a-backup"
    foreign.write_bytes(b"x")
    os.chown(foreign, -1, OTHER_GROUP)
    foreign.chmod(0o640)
    with pytest.raises(GroupInUse, match="a-backup"):
        share_with_group(root, GROUP)
    assert {name: found for name, found in of_all(root).items() if name != "a-backup"} == SHARED
    assert permissions(foreign) == (OTHER_GROUP, 0o640)


def test_no_file_of_root_is_opened_through_a_link(root: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"x")
    secret.chmod(0o600)
    (root / "hard").hardlink_to(secret)
    (root / "soft").symlink_to(secret)
    os.mkfifo(root / "fifo", 0o600)
    with pytest.raises(OSError, match="soft"):
        share_with_group(root, GROUP)
    assert permissions(secret) == (os.getegid(), 0o600)
    assert permissions(root / "fifo") == (os.getegid(), 0o600)


def test_a_marker_that_a_killed_claim_has_left_with_two_names_is_reported(root: Path) -> None:
    second = root / ".codehub-installation.0123456789abcdef"
    second.hardlink_to(root / ".codehub-installation")
    with pytest.raises(OSError, match="second name"):
        share_with_group(root, GROUP)
    second.unlink()
    share_with_group(root, GROUP)
    assert is_shared(root)


def test_the_group_is_never_given_write_access(root: Path) -> None:
    LocalObjectStore(root).upload(KEY, [b"old"], lambda: 0)
    (root / "w1").chmod(0o777)
    (root / KEY).chmod(0o664)
    share_with_group(root, GROUP)
    assert permissions(root / "w1") == (GROUP, 0o2757)
    assert permissions(root / KEY) == (GROUP, 0o644)


def test_a_file_system_that_refuses_modes_costs_no_archive(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a file system may invent modes with which the store looks shared."""

    def refuse(*_arguments: object, **_options: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    (root / ".codehub-installation").chmod(0o755)
    assert is_shared(root)
    monkeypatch.setattr(os, "fchmod", refuse)
    monkeypatch.setattr(Path, "chmod", refuse)
    store = LocalObjectStore(root)
    store.upload(KEY, [b"home"], lambda: 0)
    assert store.read(KEY) == b"home"
