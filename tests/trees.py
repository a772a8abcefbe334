"""Home directories for tests, and a hash that is equal for equal trees."""

import errno
import hashlib
import os
import random
import socket
import stat
import struct
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

_NOBODY = 0xFFFFFFFF
_BLOCK = 1 << 16
INVISIBLE = "\N{TAG LATIN SMALL LETTER A}"
"""A character that a conversion of the charset may drop silently."""
IN_UTF_8 = os.environ | {"LC_ALL": "C.UTF-8"}
"""Environment in which tar keeps every character."""
_ACCESS_ACL = "system.posix_acl_access"
_NET_RAW = struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0)


def make_tree(path: Path, seed: int, files: int = 40) -> None:
    """Fill a directory with every kind of entry that a home may contain; equal for equal seeds."""
    rng = random.Random(seed)
    path.mkdir(parents=True, exist_ok=True)
    folders = _make_folders(path, rng)
    for number in range(files):
        _make_file(rng.choice(folders) / f"file-{number}", rng)
    _make_links(path)
    _make_sparse_files(path, rng)
    _make_odd_names(path, rng)
    _make_attributes(path)
    _make_odd_times(path)
    _make_odd_owners(path)
    _make_locked_folder(path)
    path.chmod(0o750)
    os.utime(path, ns=(1, 1_600_000_000_123_456_789 + seed))


def chown_to_home_owner(home: Path) -> None:
    """Give every entry of a home to the home's owner, as if the workspace had created it.

    A restore under root does the same with entries of other users.
    """
    owner = home.stat().st_uid
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", "-h", f"{owner}:{owner}", home], check=True)


def tree_hash(path: Path) -> str:
    """Return a hash of a tree's content, modes, owners, times, links and extended attributes."""
    digest = hashlib.sha256()
    groups: dict[tuple[int, int], bytes] = {}
    for relative in sorted(_walk(os.fsencode(path), b".")):
        _hash_entry(digest, os.path.join(os.fsencode(path), relative), relative, groups)
    return digest.hexdigest()


def snapshot(path: Path) -> dict[bytes, str]:
    """Return the hash of each entry, to see where two trees differ."""
    groups: dict[tuple[int, int], bytes] = {}
    entries = {}
    for relative in sorted(_walk(os.fsencode(path), b".")):
        digest = hashlib.sha256()
        _hash_entry(digest, os.path.join(os.fsencode(path), relative), relative, groups)
        entries[relative] = digest.hexdigest()
    return entries


def make_many_files(path: Path, count: int) -> None:
    """Make small files, a hundred in each folder."""
    for first in range(0, count, 100):
        folder = path / f"{first // 10_000}" / f"{first}"
        folder.mkdir(parents=True)
        directory = os.open(folder, os.O_RDONLY)
        for number in range(first, min(first + 100, count)):
            fd = os.open(f"{number}.js", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=directory)
            os.write(fd, b"%d\n" % number * (number % 50))
            os.close(fd)
        os.close(directory)


def make_huge_file(path: Path, size: int) -> None:
    """Make a sparse file, nearly all of which is a hole."""
    with open(path, "wb") as file:
        for position in (0, size // 2 + 12_345, size - 4097):
            file.seek(position)
            file.write(random.Random(position).randbytes(4097))


def make_python_environment(path: Path) -> None:
    """Make a Python environment, whose links lead out of the home."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(path)


def make_special_files(path: Path) -> list[str]:
    """Make entries that no archive can contain; return their names."""
    path.mkdir()
    os.mkfifo(path / "pipe")
    os.link(path / "pipe", path / "same pipe")
    directory = os.open(path, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{directory}/socket")
    os.close(directory)
    names = ["pipe", "same pipe", "socket"]
    if os.geteuid() == 0:
        os.mknod(path / "character", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        os.mknod(path / "block", stat.S_IFBLK | 0o600, os.makedev(7, 0))
        names += ["block", "character"]
    return sorted(names)


def _walk(root: bytes, relative: bytes) -> Iterator[bytes]:
    yield relative
    with os.scandir(os.path.join(root, relative)) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        below = os.path.join(relative, entry.name)
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(root, below)
        else:
            yield below


def _hash_entry(
    digest: "hashlib._Hash", path: bytes, relative: bytes, groups: dict[tuple[int, int], bytes]
) -> None:
    found = os.lstat(path)
    facts = [relative, oct(found.st_mode), found.st_uid, found.st_gid, found.st_mtime_ns]
    if not stat.S_ISDIR(found.st_mode):
        facts.append(groups.setdefault((found.st_dev, found.st_ino), relative))
    if stat.S_ISLNK(found.st_mode):
        facts.append(os.readlink(path))
    elif stat.S_ISREG(found.st_mode):
        facts += [found.st_size, _content_hash(path, found.st_size)]
    for name in sorted(os.listxattr(path, follow_symlinks=False)):
        facts += [name, os.getxattr(path, name, follow_symlinks=False)]
    digest.update(repr(facts).encode())


def _content_hash(path: bytes, size: int) -> str:
    """Hash the blocks that are not all zeros: a hole equals zeros, and is skipped quickly."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        position = 0
        while position < size and (position := _next_data(file.fileno(), position)) < size:
            block = os.pread(file.fileno(), _BLOCK, position)
            if block.count(0) != len(block):
                digest.update(b"%d:" % position + block)
            position += _BLOCK
    return digest.hexdigest()


def _next_data(fd: int, position: int) -> int:
    """Return the start of the next block that is not a hole, or a position beyond the end."""
    try:
        return os.lseek(fd, position, os.SEEK_DATA) // _BLOCK * _BLOCK
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return sys.maxsize


def _make_folders(path: Path, rng: random.Random) -> list[Path]:
    folders = [path]
    for number in range(6):
        folder = rng.choice(folders) / f"folder-{number}"
        folder.mkdir()
        folders.append(folder)
    (path / "empty").mkdir()
    deep = path.joinpath(*["d" * 90] * 4)
    deep.mkdir(parents=True)
    return [*folders, deep]


def _make_file(path: Path, rng: random.Random) -> None:
    size = rng.choice([0, 1, 511, 512, 513, 4096, 100_000, rng.randrange(300_000)])
    path.write_bytes(rng.randbytes(size // 2) + bytes(size - size // 2))
    unreadable = 0o000 if os.geteuid() == 0 else 0o444
    path.chmod(rng.choice([0o600, 0o644, 0o755, 0o400, unreadable, 0o4755]))


def _make_links(path: Path) -> None:
    (path / "original").write_text("one content, three names")
    os.link(path / "original", path / "again")
    os.link(path / "original", path / "empty" / "and again")
    os.symlink("original", path / "link")
    os.symlink("/etc/passwd", path / "absolute link")
    os.symlink("../../../outside", path / "outside link")
    os.symlink("nowhere/" + "x" * 150, path / "dangling link")
    os.symlink(b"\xff\xfe not utf-8 \n", os.fsencode(path / "odd link"))
    os.link(path / "link", path / "hard link to a link", follow_symlinks=False)
    os.symlink("empty", path / "link to folder")


def _make_sparse_files(path: Path, rng: random.Random) -> None:
    with open(path / "sparse", "wb") as file:
        for block in range(5):
            file.seek(block * 1_000_000)
            file.write(rng.randbytes(5000))
        file.truncate(6_000_001)
    with open(path / "hole", "wb") as file:
        file.truncate(3_000_000)
    with open(path / "partial download", "wb") as file:
        file.write(rng.randbytes(4096))
        file.seek(1_000_000)
        file.write(b"a tail that fills no block")


def _make_odd_names(path: Path, rng: random.Random) -> None:
    root = os.fsencode(path)
    names = [
        b"\xff\xfe\x80",
        b"new\nline",
        b"tail\n",
        b" ",
        b"-rf",
        b"back\\slash",
        b"tab\t",
        "한글".encode(),
    ]
    names += [b"n" * 255, b"a=b", b"%41", b"GNUSparseFile.0", b"PaxHeaders", b"quote'\""]
    names += [name.encode() for name in ("notes", f"notes{INVISIBLE}", INVISIBLE)]
    for name in names:
        with open(os.path.join(root, name), "wb") as file:
            file.write(rng.randbytes(20))
    os.link(path / f"notes{INVISIBLE}", path / f"linked{INVISIBLE}")
    (path / f"folder{INVISIBLE}").mkdir()
    os.mkdir(os.path.join(root, b"folder \xff\n"))
    with open(os.path.join(root, b"folder \xff\n", b"inside"), "wb") as file:
        file.write(b"inside")


def _make_attributes(path: Path) -> None:
    target = path / "attributes"
    target.write_text("attributes")
    try:
        os.setxattr(target, "user.plain", b"value")
        os.setxattr(target, "user.with=and%", b"line\nbreak\0nul")
        os.setxattr(path / "empty", "user.folder", b"x" * 1000)
    except OSError:
        if _is_in_memory(path):
            return  # tmpfs keeps attributes since Linux 6.6
        raise
    acl = some_acl()
    _make_locked_attributes(path / "locked attributes", acl)
    os.setxattr(target, _ACCESS_ACL, acl)
    os.setxattr(path / "empty", "system.posix_acl_default", acl)
    heirs = path / "heirs"
    heirs.mkdir()
    (heirs / "from before").write_bytes(b"has nothing of it")
    os.setxattr(heirs, "system.posix_acl_default", acl)
    (heirs / "heir").write_bytes(b"has an ACL of its own")
    if os.geteuid() == 0:
        os.setxattr(target, "trusted.secret", b"root only")
        os.setxattr(target, "security.capability", _NET_RAW)
        os.setxattr(path / "empty", "security.label", b"of nobody")


def _make_locked_attributes(path: Path, acl: bytes) -> None:
    """Make read-only entries with attributes, such as a download that was made read-only."""
    path.mkdir()
    for name, attribute, value in (("file", "user.origin", b"elsewhere"), ("shared", _ACCESS_ACL, acl)):
        (path / name).write_text("read-only")
        os.setxattr(path / name, attribute, value)
        (path / name).chmod(0o444)
    (path / "folder").mkdir()
    os.setxattr(path / "folder", "user.origin", b"elsewhere")
    (path / "folder").chmod(0o555)


def _is_in_memory(path: Path) -> bool:
    done = subprocess.run(["stat", "-f", "-c", "%T", path], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout == "tmpfs\n"


def some_acl() -> bytes:
    """Return an ACL in the kernel's format: a tag, permissions and an id for each entry."""
    # A user namespace has no other user than the current one.
    someone = 1234 if os.geteuid() == 0 else os.geteuid()
    entries = (
        (0x01, 6, _NOBODY), (0x02, 4, someone), (0x04, 4, _NOBODY), (0x10, 4, _NOBODY), (0x20, 0, _NOBODY)
    )  # fmt: skip
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def _make_odd_times(path: Path) -> None:
    for name, time in [
        ("ancient", -1_000_000_000_500_000_000),
        ("epoch", 0),
        ("future", 7_000_000_000_000_000_001),
    ]:
        (path / name).write_text(name)
        os.utime(path / name, ns=(time, time))


def _make_odd_owners(path: Path) -> None:
    if os.geteuid() != 0:
        return
    for name, owner in [("owned by someone", 12345), ("owned by many", 3_000_000_000)]:
        (path / name).write_text(name)
        os.chown(path / name, owner, owner)


def _make_locked_folder(path: Path) -> None:
    """Make a folder without permissions, which only root can read."""
    if os.geteuid() != 0:
        return
    (path / "locked").mkdir()
    (path / "locked" / "inside").write_text("hidden")
    (path / "locked").chmod(0o000)
