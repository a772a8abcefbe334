"""A restore refuses every tar stream that could do anything but fill its directory."""

import io
import random
import tarfile

import pytest

from codehub.storage.errors import CorruptedArchive
from codehub.storage.tar.header import BLOCK, parse_pax, read_entry
from codehub.storage.tar.restore_check import RestoreCheck
from codehub.storage.tar.spilling_map import SpillingMap
from tests.tar_streams import HOME, entry, pax_block, record, sparse, stream, with_prefix


@pytest.fixture(autouse=True, params=["in memory", "in a file"])
def where_names_are_kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also run with names in a file, as in homes with very many of them."""
    if request.param == "in a file":
        monkeypatch.setattr("codehub.storage.tar.restore_check._NAMES_HELD", 1)
        monkeypatch.setattr(
            "codehub.storage.tar.restore_check.SpillingMap",
            lambda in_memory=1: SpillingMap(min(in_memory, 1)),
        )


def feed(data: bytes, step: int = 1 << 20, max_entries: int = 100) -> tuple[bytes, RestoreCheck]:
    check = RestoreCheck(max_entries)
    out = io.BytesIO()
    for start in range(0, len(data), step):
        for _, piece in check.feed(data[start : start + step]):
            out.write(piece)
    check.finish()
    return out.getvalue(), check


@pytest.mark.parametrize("step", [513, 1 << 20])
def test_two_readers_get_every_directory_and_each_file_once_and_a_link_where_its_target_is(step: int) -> None:
    parts = [entry(f"./d{number}/", tarfile.DIRTYPE) for number in range(6)]
    files = [entry(f"./d{number}/f{name}", content=b"x" * 700) for number in range(6) for name in range(3)]
    links = [entry(f"./l{number}", tarfile.LNKTYPE, linkname=f"./d{number}/f1") for number in range(6)]
    by_directory = [
        piece for number, part in enumerate(parts) for piece in (part, *files[3 * number : 3 * number + 3])
    ]
    data = stream(HOME, *by_directory, *links)
    check, *seen = share(data, step)
    assert check.bytes == len(data)
    directories = {".", *(f"./d{number}" for number in range(6))}
    assert all({name for name, member in own.items() if member.isdir()} == directories for own in seen)
    assert set(seen[0]) & set(seen[1]) == directories
    assert len(set(seen[0]) | set(seen[1])) == 7 + 18 + 6
    for own in seen:
        assert sum(member.isreg() for member in own.values()) == 9
        assert all(member.linkname in own for member in own.values() if member.islnk())


@pytest.mark.parametrize("step", [513, 1 << 20])
def test_from_a_directory_with_inherited_rights_on_one_reader_gets_everything(step: int) -> None:
    acl = {"SCHILY.xattr.system.posix_acl_default": "rights"}
    before = []
    for number in range(4):
        before += [entry(f"./d{number}/", tarfile.DIRTYPE), entry(f"./d{number}/f", content=b"x" * 700)]
    giver = entry("./giver/", tarfile.DIRTYPE, pax_headers=acl)
    after = [entry("./giver/f", content=b"y"), entry("./later/", tarfile.DIRTYPE), entry("./later/f")]
    links = [entry(f"./l{number}", tarfile.LNKTYPE, linkname=f"./d{number}/f") for number in range(4)]
    data = stream(HOME, *before, giver, *after, *links)
    check, first, second = share(data, step)
    assert check.readers == 1
    late = {"./giver", "./giver/f", "./later", "./later/f", *(f"./l{number}" for number in range(4))}
    assert late <= set(first)
    assert not late & set(second)
    assert any(member.isreg() for member in second.values())


def share(
    data: bytes, step: int
) -> tuple[RestoreCheck, dict[str, tarfile.TarInfo], dict[str, tarfile.TarInfo]]:
    """Return what each of two readers gets of a stream."""
    check = RestoreCheck(100, readers=2)
    streams = io.BytesIO(), io.BytesIO()
    for start in range(0, len(data), step):
        for goes, piece in check.feed(data[start : start + step]):
            for reader, out in enumerate(streams):
                if goes >> reader & 1:
                    out.write(piece)
    check.finish()
    return check, members(streams[0].getvalue()), members(streams[1].getvalue())


def members(data: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {member.name: member for member in archive}


@pytest.mark.parametrize("step", [1, 7, 511, 512, 513, 4095, 4096, 4097, 9000, 1 << 20])
def test_a_valid_stream_passes_unchanged_at_any_chunk_size(step: int) -> None:
    data = stream(
        HOME,
        entry("./a", content=b"x" * 700),
        entry("./d/", tarfile.DIRTYPE),
        entry("./d/long", pax_headers={"path": "./d/" + "n" * 200}, content=b"y"),
        entry("./d/link", tarfile.SYMTYPE, linkname="/anywhere/../at/all"),
        entry("./hard", tarfile.LNKTYPE, linkname="./a"),
        entry("./large", pax_headers={"SCHILY.xattr.user.large": "v" * 10_000}, content=b"z" * 5000),
    )
    out, check = feed(data, step)
    assert out == data
    assert (check.entries, check.bytes) == (7, len(data))


@pytest.mark.parametrize(
    ("extents", "content", "size"),
    [
        (b"2\n512\n512\n4096\n0\n", 512, "4096"),
        (b"2\n1048576\n5\n1048581\n0\n", 5, "1048581"),
        (b"1\n4096\n0\n", 0, "4096"),
    ],
)
def test_a_sparse_file_passes(extents: bytes, content: int, size: str) -> None:
    data = stream(HOME, sparse(extents, content, size), entry("./after"))
    assert feed(data, 100)[0] == data


HOSTILE = {
    "absolute path": stream(HOME, entry("/etc/passwd")),
    "path without ./": stream(HOME, entry("a")),
    "dot dot": stream(HOME, entry("./../a")),
    "dot dot inside": stream(HOME, entry("./d/", tarfile.DIRTYPE), entry("./d/../a")),
    "dot dot in pax": stream(HOME, entry("./a", pax_headers={"path": "./../a"})),
    "dot inside": stream(HOME, entry("././a")),
    "double slash": stream(HOME, entry(".//a")),
    "through a symlink": stream(HOME, entry("./l", tarfile.SYMTYPE, linkname="/tmp"), entry("./l/a")),
    "symlink replaces a directory": stream(
        HOME, entry("./d/", tarfile.DIRTYPE), entry("./d", tarfile.SYMTYPE, linkname="/tmp"), entry("./d/a")
    ),
    "directory over a symlink": stream(
        HOME, entry("./l", tarfile.SYMTYPE, linkname="/tmp"), entry("./l/", tarfile.DIRTYPE), entry("./l/a")
    ),
    "file over a symlink": stream(HOME, entry("./l", tarfile.SYMTYPE, linkname="/tmp/x"), entry("./l")),
    "through a hard link to a symlink": stream(
        HOME,
        entry("./l", tarfile.SYMTYPE, linkname="/tmp"),
        entry("./h", tarfile.LNKTYPE, linkname="./l"),
        entry("./h/a"),
    ),
    "hard link out": stream(HOME, entry("./h", tarfile.LNKTYPE, linkname="/etc/passwd")),
    "hard link up": stream(HOME, entry("./h", tarfile.LNKTYPE, linkname="./../../etc/passwd")),
    "hard link through a symlink": stream(
        HOME,
        entry("./l", tarfile.SYMTYPE, linkname="/etc"),
        entry("./h", tarfile.LNKTYPE, linkname="./l/passwd"),
    ),
    "hard link into a later directory": stream(
        HOME, entry("./h", tarfile.LNKTYPE, linkname="./d/f"), entry("./d/", tarfile.DIRTYPE), entry("./d/f")
    ),
    "hard link with content": stream(
        HOME, entry("./a"), entry("./h", tarfile.LNKTYPE, linkname="./a", content=b"data")
    ),
    "directory with content": stream(HOME, entry("./d/", tarfile.DIRTYPE, content=b"data")),
    "character device": stream(HOME, entry("./c", tarfile.CHRTYPE)),
    "block device": stream(HOME, entry("./b", tarfile.BLKTYPE)),
    "pipe": stream(HOME, entry("./p", tarfile.FIFOTYPE)),
    "contiguous file": stream(HOME, entry("./p", tarfile.CONTTYPE)),
    "old file": stream(HOME, entry("./p", tarfile.AREGTYPE)),
    "GNU long name": stream(HOME, entry("././@LongLink", tarfile.GNUTYPE_LONGNAME, content=b"x")),
    "global pax header": stream(HOME, entry("./g", tarfile.XGLTYPE, content=record(b"path", b"/etc/passwd"))),
    "same path twice": stream(HOME, entry("./a"), entry("./a")),
    "home twice": stream(HOME, HOME),
    "missing parent": stream(HOME, entry("./d/a")),
    "back into a directory that was left": stream(
        HOME, entry("./d/", tarfile.DIRTYPE), entry("./e/", tarfile.DIRTYPE), entry("./d/a")
    ),
    "same path twice, with a directory between": stream(
        HOME, entry("./a"), entry("./d/", tarfile.DIRTYPE), entry("./d/b"), entry("./a")
    ),
    "directory twice": stream(HOME, entry("./d/", tarfile.DIRTYPE), entry("./d/", tarfile.DIRTYPE)),
    "no home": stream(entry("./a")),
    "file with a slash": stream(HOME, entry("./d/")),
    "directory without a slash": stream(HOME, entry("./d", tarfile.DIRTYPE)),
    "prefix": stream(HOME, end=with_prefix(stream(entry("./a")), b"/etc")),
    "unknown pax key": stream(HOME, entry("./a", pax_headers={"GNU.dumpdir": "x"})),
    "pax hdrcharset": stream(HOME, entry("./a", pax_headers={"hdrcharset": "BINARY"})),
    "negative size": stream(HOME, entry("./a", pax_headers={"size": "-512"})),
    "size in pax hides an entry": stream(HOME, entry("./a", pax_headers={"size": "512"}), entry("./b")),
    "NUL in a pax path": stream(HOME, entry("./a", pax_headers={"path": "./a\0b"})),
    "two pax headers": stream(HOME, end=pax_block(record(b"mtime", b"1")) * 2 + stream(entry("./a"))),
    "pax key twice": stream(HOME, end=pax_block(record(b"mtime", b"1") * 2) + stream(entry("./a"))),
    "pax header at the end": stream(HOME, end=pax_block(record(b"mtime", b"1")) + bytes(2 * BLOCK)),
    "too long a path": stream(HOME, entry("./a", pax_headers={"path": "./" + "n/" * 2500 + "a"})),
    "symlink to nothing": stream(HOME, entry("./l", tarfile.SYMTYPE, linkname="")),
    "data after the end": stream(HOME) + stream(entry("./a")),
    "one zero block, then more": stream(HOME, end=bytes(BLOCK) + stream(entry("./a"))),
    "cut off in a header": stream(HOME)[:300],
    "cut off in content": stream(HOME, entry("./a", content=b"x" * 5000))[:2000],
    "cut off before the end": stream(HOME, end=b""),
    "half an end": stream(HOME, end=bytes(BLOCK)),
    "flipped bit in a header": stream(HOME).replace(b"ustar", b"ustas"),
    "wrong checksum": stream(HOME).replace(b"./\0", b"./\1", 1),
    "sparse map too large for its content": stream(HOME, sparse(b"1\n0\n1024\n", 512, "4096"), entry("./b")),
    "sparse map too small for its content": stream(HOME, sparse(b"1\n0\n512\n", 1024, "4096")),
    "sparse map beyond the file": stream(HOME, sparse(b"1\n4096\n512\n", 512, "4096")),
    "sparse map of nothing but empty extents": stream(HOME, sparse(b"3\n0\n0\n0\n0\n0\n0\n", 0, "4096")),
    "sparse map backwards": stream(HOME, sparse(b"2\n1024\n512\n0\n512\n", 1024, "4096")),
    "sparse map out of step": stream(HOME, sparse(b"2\n0\n100\n512\n412\n", 512, "4096")),
    "sparse map with signs": stream(HOME, sparse(b"1\n-1\n512\n", 512, "4096")),
    "sparse map that never ends": stream(HOME, sparse(b"9" * 40, 512, "4096")),
    "sparse name out": stream(HOME, sparse(b"1\n0\n512\n", 512, "4096", **{"GNU.sparse.name": "../s"})),
    "sparse version": stream(HOME, sparse(b"1\n0\n512\n", 512, "4096", **{"GNU.sparse.minor": "1"})),
    "sparse link": stream(
        HOME, entry("./l", tarfile.SYMTYPE, linkname="x", pax_headers={"GNU.sparse.name": "./l"})
    ),
}


@pytest.mark.parametrize("step", [100, 1 << 20])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_stream_is_refused(name: str, step: int) -> None:
    with pytest.raises(CorruptedArchive):
        feed(HOSTILE[name], step)


def test_nothing_of_a_hostile_entry_is_passed_on_before_it_is_refused() -> None:
    check = RestoreCheck(100)
    passed = b""
    with pytest.raises(CorruptedArchive):
        for byte in stream(HOME, entry("./ok", content=b"fine"), entry("/etc/passwd", content=b"bad")):
            passed += b"".join(piece for _, piece in check.feed(bytes([byte])))
    assert passed == stream(HOME, entry("./ok", content=b"fine"), end=b"")


def test_more_entries_than_declared_are_refused() -> None:
    data = stream(HOME, entry("./a", content=b"x" * 600))
    feed(data, max_entries=2)
    with pytest.raises(CorruptedArchive, match="more entries"):
        feed(data, max_entries=1)


def test_pax_values_may_hold_any_byte() -> None:
    value = b"line\nbreak = \0 nul"
    assert parse_pax(record(b"SCHILY.xattr.user.a", value)) == {b"SCHILY.xattr.user.a": value}


@pytest.mark.parametrize(
    "data", [b"5 a=", b"99 mtime=1\n", b"mtime=1\n", b"011 mtime=1\n", b"9 mtime1\n", b"0 \n"]
)
def test_malformed_pax_records_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptedArchive):
        parse_pax(data)


def shifted(data: bytes, first: int, second: int) -> bytes:
    """Return headers with a zero byte moved from after one field to after another."""
    assert data[first] == data[second] == 0
    return data[:first] + data[first + 1 : second] + b"\0" + data[second:]


def test_header_fields_are_accepted_only_where_other_readers_expect_them() -> None:
    data = pax_block(record(b"mtime", b"1700000000.5")) + stream(entry("./a", content=b"x"))
    good = read_entry(data, 0, checksums=False)
    assert good is not None
    assert (good.path, good.size, good.header_length) == (b"./a", 1, 3 * BLOCK)
    with pytest.raises(CorruptedArchive):
        read_entry(shifted(data, 50, 2 * BLOCK + 50), 0, checksums=False)


@pytest.mark.parametrize("place", [3, 107, 130, 150, 156, 200, 260, 300, 400, 511])
@pytest.mark.parametrize("block", [0, 2])
def test_each_byte_of_a_header_is_in_its_checksum(block: int, place: int) -> None:
    data = bytearray(pax_block(record(b"mtime", b"1700000000.5")) + stream(entry("./a", content=b"x")))
    data[block * BLOCK + place] ^= 1
    with pytest.raises(CorruptedArchive):
        read_entry(bytes(data), 0)


def test_the_fast_parser_of_files_agrees_with_the_full_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any byte of a header is changed, with a matching or a wrong checksum."""
    times = [{"mtime": f"170000000{number}.{number}23456789"} for number in range(3)]
    files = [
        entry(f"./d/f{number}", content=b"x" * 600, pax_headers=time) for number, time in enumerate(times)
    ]
    plain = [entry("./d/plain"), entry("./d/" + "long" * 20)]
    data = stream(HOME, entry("./d/", tarfile.DIRTYPE), *files, *plain, entry("./f", pax_headers=times[0]))
    chance = random.Random(3)
    damaged = [damage(data, chance) for _ in range(1500)]
    quick = [verdict(each) for each in (data, *damaged)]
    monkeypatch.setattr("codehub.storage.tar.fast_header_parser.FastHeaderParser.read", lambda *_: None)
    assert quick == [verdict(each) for each in (data, *damaged)]
    assert quick[0] == data
    assert 100 < quick.count(None) < 1400


ENDS = (107, 115, 123, 135, 147, 154)
"""Offsets of the ends of a header's numbers."""


def damage(data: bytes, chance: random.Random) -> bytes:
    damaged = bytearray(data)
    block = chance.randrange(len(data) // BLOCK) * BLOCK
    match chance.randrange(10):
        case 0:
            end = block + chance.choice(ENDS)
            damaged[end - 1], damaged[end] = damaged[end], damaged[end - 1]
        case 1:
            damaged[block + chance.randrange(10, 29)] = ord("\n")
        case _:
            at = block + chance.randrange(chance.choice((4, 265, BLOCK)))
            damaged[at] = chance.choice(b"\0 ./01278x5\xff")
    if chance.random() < 0.7 and data[block + 257 : block + 262] == b"ustar":
        damaged[block + 148 : block + 156] = b" " * 8
        damaged[block + 148 : block + 156] = b"%06o\0 " % sum(damaged[block : block + BLOCK])
    return bytes(damaged)


def verdict(data: bytes) -> bytes | None:
    """Return what is passed on, or None if the stream is refused."""
    try:
        return feed(data)[0]
    except CorruptedArchive:
        return None
