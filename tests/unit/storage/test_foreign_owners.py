"""Under root a restored home belongs to its user, whatever owners the archive has."""

import os
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from codehub.domain.observation import ArchiveFact
from codehub.storage.tar.archive_stream import ArchiveStream
from codehub.storage.tar.foreign_owners import ForeignEntries
from codehub.storage.tar.restore_check import RestoreCheck
from codehub.storage.tar.unpack import unpack
from tests.tar_streams import entry, stream
from tests.trees import make_tree, snapshot

OWNER, STRANGER = 3_000_001, 3_000_002
"""Too large for the octal field of a tar header, and so in the pax header."""
SETUID, SETGID = stat.S_ISUID | 0o755, stat.S_ISGID | 0o755
CAN_OPEN_RAW_SOCKETS = bytes.fromhex("0100000200200000000000000000000000000000")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")


def given(path: Path, owner: int, mode: int = 0o644) -> Path:
    """Make a file with this owner."""
    path.write_text(path.name)
    os.chown(path, owner, owner)
    path.chmod(mode)
    return path


def restored(home: Path, target: Path, owner: int | None) -> ForeignEntries:
    packing = ArchiveStream(home, [], lambda done, files: None)
    data = b"".join(packing)
    fact = ArchiveFact("w", "a", "w/a", packing.sha256, packing.bytes, packing.unpacked, packing.entries)
    target.mkdir(mode=0o700)
    return unpack([memoryview(data)], fact, target, [], lambda done, files: None, owner)


def owners(home: Path) -> set[tuple[int, int]]:
    found = [home, *home.rglob("*")]
    return {(path.lstat().st_uid, path.lstat().st_gid) for path in found}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Home whose entries all belong to its user."""
    make_tree(tmp_path / "home", seed=3)
    subprocess.run(["chown", "-R", "-h", f"{OWNER}:{OWNER}", tmp_path / "home"], check=True)
    return tmp_path / "home"


@needs_root
@pytest.mark.parametrize("stranger", [0, STRANGER])
def test_entries_of_other_users_are_given_to_the_homes_user(
    home: Path, tmp_path: Path, stranger: int
) -> None:
    given(home / "theirs", stranger)
    (home / "folder").mkdir(mode=0o700)
    os.chown(home / "folder", stranger, OWNER)
    (home / "folder" / "link").symlink_to("/etc/shadow")
    shadow = Path("/etc/shadow").stat()
    foreign = restored(home, tmp_path / "back", OWNER)
    assert owners(tmp_path / "back") == {(OWNER, OWNER)}
    assert (tmp_path / "back" / "theirs").read_text() == "theirs"
    assert (tmp_path / "back" / "folder").stat().st_mode & 0o777 == 0o700
    assert Path("/etc/shadow").stat() == shadow
    assert foreign.count == 3
    assert "gave 3 entries of other users to the workspace's user" in foreign.sentence()


@needs_root
def test_entries_of_other_users_lose_their_privileges(home: Path, tmp_path: Path) -> None:
    """A setuid program keeps its bit only if the archive has the user as its owner."""
    for name, mode in (("setuid", SETUID), ("setgid", SETGID)):
        given(home / f"{name} of root", 0, mode)
        given(home / f"{name} of their own", OWNER, mode)
    os.setxattr(given(home / "capable", OWNER, 0o755), "security.capability", CAN_OPEN_RAW_SOCKETS)
    restored(home, tmp_path / "back", OWNER)
    modes = {path.name: path.stat().st_mode & 0o7777 for path in (tmp_path / "back").glob("set*")}
    assert modes == {
        "setuid of root": 0o755, "setgid of root": 0o755,
        "setuid of their own": SETUID, "setgid of their own": SETGID,
    }  # fmt: skip
    assert os.listxattr(tmp_path / "back" / "capable") == []


@needs_root
def test_a_home_without_foreign_entries_comes_back_untouched(home: Path, tmp_path: Path) -> None:
    foreign = restored(home, tmp_path / "back", OWNER)
    assert snapshot(tmp_path / "back") == snapshot(home)
    assert (foreign.count, foreign.sentence()) == (0, "")


@needs_root
def test_entries_with_the_longest_paths_are_given_too(home: Path, tmp_path: Path) -> None:
    nested = "/".join(["d" * 200] * 19)
    command = f"mkdir -p {nested} && cd {nested} && echo x > f"
    subprocess.run(["sh", "-c", command], cwd=home, check=True)
    foreign = restored(home, tmp_path / "back", OWNER)
    assert foreign.count > 10
    left = subprocess.run(
        ["find", ".", "!", "-uid", str(OWNER)], cwd=tmp_path / "back", check=True, capture_output=True
    )
    assert left.stdout == b""


@needs_root
def test_without_an_owner_all_entries_keep_theirs(home: Path, tmp_path: Path) -> None:
    given(home / "theirs", STRANGER)
    assert restored(home, tmp_path / "back", None).count == 0
    assert owners(tmp_path / "back") == {(OWNER, OWNER), (STRANGER, STRANGER)}


@pytest.mark.parametrize(
    ("owner", "ids", "count"),
    [
        (2000, {"uid": 2000, "gid": 2000}, 0),
        (2000, {"uid": 2000, "gid": 0}, 1),
        (2000, {"uid": 0, "gid": 2000}, 1),
        (2000, {"uid": 2000, "gid": 2000, "pax_headers": {"uid": "0"}}, 1),
        (OWNER, {"pax_headers": {"uid": str(OWNER), "gid": str(OWNER)}}, 0),
        (OWNER, {"pax_headers": {"uid": str(OWNER)}}, 1),
        (OWNER, {"pax_headers": {"uid": str((1 << 32) - 1), "gid": str((1 << 32) - 1)}}, 1),
    ],
)
def test_owners_are_read_as_tar_reads_them(owner: int, ids: dict[str, object], count: int) -> None:
    """The pax header has precedence. An owner of 2^32 - 1 would leave the file to root."""
    ours = {"pax_headers": {"uid": str(owner), "gid": str(owner)}}
    check = RestoreCheck(10, owner=owner)
    check.feed(stream(entry("./", tarfile.DIRTYPE, **ours), entry("./file", content=b"x", **ids)))
    check.finish()
    assert check.foreign.count == count


def test_names_are_shown_as_one_line_and_few_of_them() -> None:
    foreign = ForeignEntries()
    for number in range(7):
        foreign.add(b"./one line\nor two %d" % number)
    assert foreign.sentence().startswith("gave 7 entries of other users")
    assert "\n" not in foreign.sentence() and foreign.sentence().endswith(", ...)")
