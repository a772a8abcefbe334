"""An archive contains the whole home and opens with plain tools; a modified one is refused."""

import hashlib
import os
import socket
import subprocess
import tarfile
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from codehub.domain.observation import ArchiveFact
from codehub.storage.child_processes import check_locale
from codehub.storage.errors import CannotArchive, CorruptedArchive, StorageProblem
from codehub.storage.tar import tar_process
from codehub.storage.tar.archive_stream import ArchiveStream
from codehub.storage.tar.spilling_map import digest
from codehub.storage.tar.unpack import unpack
from tests.tar_streams import HOME, entry, stream
from tests.trees import IN_UTF_8, INVISIBLE, make_tree, snapshot, some_acl, tree_hash


def pack(home: Path) -> tuple[bytes, ArchiveFact, ArchiveStream]:
    packing = ArchiveStream(home, [], lambda done, files: None)
    data = b"".join(packing)
    fact = ArchiveFact(
        "w", "a", "w/a/home.tar.zst", packing.sha256, packing.bytes, packing.unpacked, packing.entries
    )
    return data, fact, packing


def restore(data: bytes, fact: ArchiveFact, target: Path) -> None:
    target.mkdir(mode=0o700)
    pieces = (memoryview(data)[start : start + 10_000] for start in range(0, len(data), 10_000))
    unpack(pieces, fact, target, [], lambda done, files: None)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    make_tree(tmp_path / "home", seed=7)
    yield tmp_path / "home"
    subprocess.run(["chmod", "-R", "u+rwx", tmp_path], check=True)


def test_a_home_comes_back_with_every_property(home: Path, tmp_path: Path) -> None:
    data, fact, packing = pack(home)
    restore(data, fact, tmp_path / "restored")
    assert snapshot(tmp_path / "restored") == snapshot(home)
    assert packing.left_out.sentence() == ""


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_a_home_round_trips_on_any_number_of_cores(
    home: Path, tmp_path: Path, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "large").write_bytes(os.urandom(1 << 20) * 40)
    monkeypatch.setattr(tar_process, "CORES", cores)
    data, fact, _ = pack(home)
    restore(data, fact, tmp_path / "restored")
    assert snapshot(tmp_path / "restored") == snapshot(home)


def test_restored_files_inherit_nothing_from_a_default_acl(tmp_path: Path) -> None:
    """Files made before their directory got a default ACL have none, whichever tar unpacks them."""
    home = tmp_path / "home"
    home.mkdir()
    for number in range(60):
        place = home / f"d{number}"
        place.mkdir()
        for name in range(40):
            (place / f"f{name}").write_bytes(b"x" * 3000)
        if number % 3 == 0:
            os.setxattr(place, "system.posix_acl_default", some_acl())
            os.link(home / "d0" / "f1", place / "linked")
    data, fact, _ = pack(home)
    restore(data, fact, tmp_path / "restored")
    assert snapshot(tmp_path / "restored") == snapshot(home)


def test_restored_directories_inherit_no_setgid_bit(tmp_path: Path) -> None:
    """One tar completes the directory while the other still makes directories in it."""
    parent = tmp_path / "home" / "shared"
    parent.mkdir(parents=True)
    parent.chmod(0o2755)
    for number in range(70):
        place = parent / f"d{number}"
        place.mkdir()
        place.chmod((0o700, 0o755, 0o500, 0o2750)[number % 4])
    os.setxattr(sorted(parent.iterdir())[30], "system.posix_acl_default", some_acl())
    data, fact, _ = pack(tmp_path / "home")
    restore(data, fact, tmp_path / "restored")
    assert snapshot(tmp_path / "restored") == snapshot(tmp_path / "home")


def test_content_is_never_read_as_headers_whatever_the_name(tmp_path: Path) -> None:
    """A tar that drops a character of the name reads a directory, and the content as headers."""
    (tmp_path / "home" / "d").mkdir(parents=True)
    content = stream(entry("./planted", content=b"as root", mode=0o4755), end=b"")
    (tmp_path / "home" / "d" / INVISIBLE).write_bytes(content)
    data, fact, _ = pack(tmp_path / "home")
    restore(data, fact, tmp_path / "restored")
    assert snapshot(tmp_path / "restored") == snapshot(tmp_path / "home")


def test_without_a_utf_8_locale_nothing_is_begun() -> None:
    with pytest.raises(StorageProblem, match="libc-bin"):
        check_locale("C.ISO-8859-1")


def test_sparse_files_stay_sparse(home: Path, tmp_path: Path) -> None:
    data, fact, _ = pack(home)
    restore(data, fact, tmp_path / "restored")
    for name in ("sparse", "hole"):
        assert (tmp_path / "restored" / name).stat().st_blocks <= (home / name).stat().st_blocks
    assert fact.unpacked < 10_000_000


def test_plain_zstd_and_tar_open_it(home: Path, tmp_path: Path) -> None:
    data, _, _ = pack(home)
    (tmp_path / "a.tar.zst").write_bytes(data)
    (tmp_path / "plain").mkdir()
    command = "zstd -dc a.tar.zst | tar -x -p --numeric-owner --xattrs --xattrs-include='*' -C plain"
    subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=tmp_path, env=IN_UTF_8, check=True)
    assert tree_hash(tmp_path / "plain") == tree_hash(home)


def test_an_empty_home_comes_back_empty(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir(mode=0o700)
    data, fact, _ = pack(tmp_path / "home")
    restore(data, fact, tmp_path / "restored")
    assert tree_hash(tmp_path / "restored") == tree_hash(tmp_path / "home")
    assert fact.entries == 1


def test_sockets_and_pipes_are_left_out_and_named(home: Path, tmp_path: Path) -> None:
    before = tree_hash(home)
    times = home.stat()
    os.mkfifo(home / "pipe")
    os.link(home / "pipe", home / "pipe too")
    listener = socket.socket(socket.AF_UNIX)
    directory = os.open(home, os.O_RDONLY)
    listener.bind(f"/proc/self/fd/{directory}/소\ncket\\303")
    os.utime(home, ns=(times.st_atime_ns, times.st_mtime_ns))
    data, fact, packing = pack(home)
    listener.close()
    os.close(directory)
    restore(data, fact, tmp_path / "restored")
    assert packing.left_out.names == ["./pipe", "./pipe too", "./소\\ncket\\\\303"]
    assert packing.left_out.sentence() == (
        "left out 1 socket and 2 pipes: they cannot be archived (./pipe, ./pipe too, ./소\\ncket\\\\303)"
    )
    assert tree_hash(tmp_path / "restored") == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make devices")
def test_devices_are_left_out_and_named(home: Path) -> None:
    os.mknod(home / "null", 0o020600, os.makedev(1, 3))
    assert pack(home)[2].left_out.sentence() == "left out 1 device: it cannot be archived (./null)"


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_a_file_that_cannot_be_read_fails_the_archive(home: Path) -> None:
    (home / "unreadable").write_text("x")
    (home / "unreadable").chmod(0)
    with pytest.raises(CannotArchive, match="Permission denied"):
        pack(home)


def test_a_file_that_changes_while_it_is_read_fails_the_archive(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    log = tmp_path / "home" / "log"
    log.write_bytes(os.urandom(32 << 20))  # more than is read ahead
    chunks = iter(ArchiveStream(tmp_path / "home", [], lambda done, files: os.truncate(log, 10)))
    with pytest.raises(CannotArchive, match="log"):
        list(chunks)


def test_a_stalled_store_pauses_the_reading_of_the_home(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "bulk").write_bytes(os.urandom(160 << 20))
    read: list[int] = []
    chunks = iter(ArchiveStream(tmp_path / "home", [], lambda done, files: read.append(done)))
    written = 0
    for _ in range(40):
        written += len(next(chunks))
        assert read[-1] < written + (80 << 20)
    for _ in chunks:
        pass
    assert read[-1] > 160 << 20


@pytest.mark.parametrize("kind", ["attributes", "a hole", "nothing"])
def test_the_longest_path_that_is_archived_can_be_restored(kind: str, tmp_path: Path) -> None:
    make_deep_file(tmp_path / "home", 4000, kind)
    data, fact, _ = pack(tmp_path / "home")
    restore(data, fact, tmp_path / "back")
    assert fact.entries == 18
    subprocess.run(["rm", "-rf", tmp_path / "home", tmp_path / "back"], check=True)


@pytest.mark.parametrize(
    ("length", "message"), [(4001, "too long to be restored"), (4180, "longer than a system can open")]
)
def test_a_path_too_long_to_restore_fails_the_archive(length: int, message: str, tmp_path: Path) -> None:
    make_deep_file(tmp_path / "home", length, "nothing")
    with pytest.raises(CannotArchive, match=message):
        pack(tmp_path / "home")
    subprocess.run(["rm", "-rf", tmp_path / "home"], check=True)


def make_deep_file(home: Path, length: int, kind: str) -> None:
    """Make a file whose path, as tar writes it, has this length."""
    home.mkdir()
    with ExitStack() as stack:
        directory = os.open(home, os.O_RDONLY)
        stack.callback(os.close, directory)
        for _ in range(16):
            os.mkdir("n" * 245, dir_fd=directory)
            directory = os.open("n" * 245, os.O_RDONLY, dir_fd=directory)
            stack.callback(os.close, directory)
        name = "f" * (length - len("./") - 16 * len("n" * 245 + "/"))
        file = os.open(name, os.O_CREAT | os.O_RDWR, dir_fd=directory)
        stack.callback(os.close, file)
        if kind == "a hole":
            os.truncate(file, 1 << 20)
        if kind == "attributes":
            os.setxattr(file, "user.colour", b"red")


def test_a_name_that_is_the_digest_of_another_name_is_not_a_duplicate(tmp_path: Path) -> None:
    """Names of a certain length are kept as digests."""
    names = (f"{number:040}".encode() for number in range(1000))
    long, short = next((name, digest(name)) for name in names if not set(digest(name)) & set(b"/\0"))
    home = os.fsencode(tmp_path / "home")
    os.mkdir(home)
    for name in (long, short):
        Path(os.fsdecode(home + b"/" + name)).write_bytes(name)
    data, fact, _ = pack(tmp_path / "home")
    restore(data, fact, tmp_path / "back")
    assert tree_hash(tmp_path / "back") == tree_hash(tmp_path / "home")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make and keep everything")
def test_an_ordinary_user_leaves_out_the_attributes_that_only_root_may_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    file = tmp_path / "home" / "file"
    file.write_text("read-only")
    os.setxattr(file, "user.colour", b"red")
    os.setxattr(file, "trusted.colour", b"green")
    file.chmod(0o400)
    data, fact, _ = pack(tmp_path / "home")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("codehub.storage.tar.unpack._may_write_everywhere", lambda: False)
    restore(data, fact, tmp_path / "back")
    monkeypatch.undo()
    back = tmp_path / "back" / "file"
    assert (os.listxattr(back), back.stat().st_mode & 0o777) == (["user.colour"], 0o400)


def test_very_many_names_of_what_is_left_out_take_little_memory(tmp_path: Path) -> None:
    """Links to one pipe with long paths: each takes a few bytes on the disk."""
    folder = tmp_path / "home" / "/".join(["n" * 200] * 15)
    folder.mkdir(parents=True)
    os.mkfifo(folder / "pipe")
    for number in range(4000):
        os.link(folder / "pipe", folder / f"{number}")
    tracemalloc.start()
    try:
        _, fact, packing = pack(tmp_path / "home")
        assert tracemalloc.get_traced_memory()[1] < 14 << 20
    finally:
        tracemalloc.stop()
    assert (fact.entries, packing.left_out.count, len(packing.left_out.names)) == (16, 4001, 5)
    assert len(packing.left_out.sentence()) < 600


def test_a_home_with_too_many_sockets_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "/".join(["n" * 200] * 15)
    folder.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
    for number in range(2000):
        os.link(tmp_path / "socket", folder / f"{number}")
    with pytest.raises(CannotArchive, match="too many sockets"):
        pack(tmp_path / "home")


def test_a_vanished_home_fails_the_archive(tmp_path: Path) -> None:
    with pytest.raises((CannotArchive, OSError)):
        pack(tmp_path / "gone")


SKIPPABLE = b"\x50\x2a\x4d\x18\x00\x00\x00\x00"


def frame(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


DAMAGE = {
    "truncated": lambda data: data[: len(data) // 2],
    "truncated by one byte": lambda data: data[:-1],
    "empty": lambda data: b"",
    "flipped bit": lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:],
    "flipped bit in the frame header": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "trailing data": lambda data: data + b"x",
    "second frame": lambda data: data + frame(b"x"),
    "empty second frame": lambda data: data + frame(b""),
    "skippable frame": lambda data: data + SKIPPABLE,
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_archive_is_refused(name: str, home: Path, tmp_path: Path) -> None:
    data, fact, _ = pack(home)
    with pytest.raises(CorruptedArchive):
        restore(DAMAGE[name](data), fact, tmp_path / "restored")


TAR = stream(HOME, entry("./f", content=bytes((2 << 20) - 4 * 512)))
NOT_ONE_FRAME = {
    "an empty frame before it": frame(b"") + frame(TAR),
    "a skippable frame before it": SKIPPABLE + frame(TAR),
    "two frames": frame(TAR[: 1 << 20]) + frame(TAR[1 << 20 :]),
    "two frames, and a skippable one between them": frame(TAR[: 1 << 20]) + SKIPPABLE + frame(TAR[1 << 20 :]),
    "cut off by a byte": frame(TAR)[:-1],
    "without its checksum": frame(TAR)[:-4],
    "without its last block": frame(TAR)[:-8],
    "nothing": b"",
}


@pytest.mark.parametrize("name", NOT_ONE_FRAME)
def test_an_archive_is_exactly_one_frame(name: str, tmp_path: Path) -> None:
    """The checksum and the sizes are those of the whole file."""
    data = NOT_ONE_FRAME[name]
    fact = ArchiveFact("w", "a", "k", hashlib.sha256(data).hexdigest(), len(data), len(TAR), 2)
    with pytest.raises(CorruptedArchive, match=r"cut off|data after|it is not zstd"):
        restore(data, fact, tmp_path / "restored")


def test_an_archive_that_is_not_as_declared_is_refused(home: Path, tmp_path: Path) -> None:
    data, fact, _ = pack(home)
    for number, wrong in enumerate(
        [
            replace(fact, sha256="0" * 64),
            replace(fact, unpacked=fact.unpacked - 1),
            replace(fact, unpacked=fact.unpacked + 1),
            replace(fact, entries=fact.entries - 1),
            replace(fact, entries=fact.entries + 1),
        ]
    ):
        with pytest.raises(CorruptedArchive):
            restore(data, wrong, tmp_path / f"restored-{number}")


@pytest.mark.parametrize("size", [5000, 1 << 20, 2 << 20])
@pytest.mark.parametrize("behind", [b"x", frame(b"x"), frame(b""), frame(bytes(1 << 20)), SKIPPABLE])
def test_data_after_the_frame_is_refused(behind: bytes, size: int, tmp_path: Path) -> None:
    """The checksum and the sizes are those of the whole file."""
    tar = stream(HOME, entry("./f", content=bytes(size - 4 * 512)))
    for data, refused in ((frame(tar), False), (frame(tar) + behind, True)):
        fact = ArchiveFact("w", "a", "k", hashlib.sha256(data).hexdigest(), len(data), len(tar), 2)
        with pytest.raises(CorruptedArchive, match="data after") if refused else nullcontext():
            restore(data, fact, tmp_path / f"restored-{refused}")


@pytest.mark.parametrize("target", ["./later", "./d"])
def test_a_hard_link_to_nothing_or_to_a_directory_fails_the_restore(target: str, tmp_path: Path) -> None:
    link = entry("./h", tarfile.LNKTYPE, linkname=target)
    tar = stream(HOME, entry("./d/", tarfile.DIRTYPE), link, entry("./later"))
    data = frame(tar)
    fact = ArchiveFact("w", "a", "k", hashlib.sha256(data).hexdigest(), len(data), len(tar), 4)
    with pytest.raises(StorageProblem, match="hard link"):
        restore(data, fact, tmp_path / "restored")


@pytest.mark.parametrize("others", [[], [entry("./s/", tarfile.DIRTYPE, mode=0o2755)]])
def test_a_bad_checksum_is_reported_rather_than_the_error_of_tar(
    others: list[tuple[tarfile.TarInfo, bytes]], tmp_path: Path
) -> None:
    link = entry("./d/h", tarfile.LNKTYPE, linkname="./d/nothing")
    tar = stream(HOME, entry("./a"), entry("./d/", tarfile.DIRTYPE), link, *others)
    data = frame(tar)
    fact = ArchiveFact("w", "a", "k", "0" * 64, len(data), len(tar), 4 + len(others))
    with pytest.raises(CorruptedArchive, match=r"not what its \.meta says"):
        restore(data, fact, tmp_path / "restored")


def test_names_that_no_disk_takes_fill_neither_memory_nor_disk(tmp_path: Path) -> None:
    count = 20_000
    names = (f"{number:05}".ljust(4000, "n") for number in range(count))
    tar = stream(HOME, *(entry("./f", pax_headers={"path": f"./{name}"}) for name in names))
    data = frame(tar)
    fact = ArchiveFact("w", "a", "k", hashlib.sha256(data).hexdigest(), len(data), len(tar), count + 1)
    seen: list[int] = []

    def progress(_done: int, files: int) -> None:
        seen.append(files)

    (tmp_path / "restored").mkdir()
    tracemalloc.start()
    try:
        with pytest.raises(StorageProblem, match="File name too long"):
            unpack([memoryview(data)], fact, tmp_path / "restored", [], progress)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    assert seen[-1] < count // 2, "tar kept reporting errors"


def test_zeros_are_unpacked_in_little_memory(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "zeros").write_bytes(bytes(64 << 20))
    data, fact, _ = pack(tmp_path / "home")
    tracemalloc.start()
    try:
        restore(data, fact, tmp_path / "restored")
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    assert snapshot(tmp_path / "restored") == snapshot(tmp_path / "home")


def test_a_frame_that_needs_much_memory_is_refused(tmp_path: Path) -> None:
    params = zstandard.ZstdCompressionParameters.from_level(3, window_log=27)
    data = zstandard.ZstdCompressor(compression_params=params).compress(bytes(200 << 20))
    fact = ArchiveFact("w", "a", "k", "0" * 64, len(data), 1 << 30, 10)
    with pytest.raises(CorruptedArchive, match="memory"):
        restore(data, fact, tmp_path / "restored")


def test_a_bomb_is_stopped_at_the_declared_size(tmp_path: Path) -> None:
    bomb = frame(bytes(200 << 20))
    fact = ArchiveFact("w", "a", "k", "0" * 64, len(bomb), 1 << 20, 10)
    with pytest.raises(CorruptedArchive, match="more bytes"):
        restore(bomb, fact, tmp_path / "restored")
