"""The filter counts a tar stream as a restore does, and drops pipes and devices."""

import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from codehub.storage.errors import CorruptedArchive
from codehub.storage.tar.archive_filter import ArchiveFilter
from codehub.storage.tar.header import BLOCK
from codehub.storage.tar.left_out import SpecialFile
from codehub.storage.tar.restore_check import RestoreCheck
from codehub.storage.tar.tar_process import tar_create
from tests.tar_streams import HOME, entry, pax_block, record, sparse, stream
from tests.trees import make_tree


class NeverSkimming(ArchiveFilter):
    """Filter that parses every header."""

    def _skip_plain_files(self, data: bytes, position: int) -> int:
        return 0


def fed(making: ArchiveFilter, data: bytes, step: int) -> bytes:
    cuts = (data[start : start + step] for start in range(0, len(data), step))
    out = b"".join(piece for cut in cuts for _, piece in making.feed(cut))
    making.finish()
    return out + making.ending()


@pytest.fixture
def tar_stream(tmp_path: Path) -> Iterator[bytes]:
    """Tar stream of a home with all kinds of entries."""
    make_tree(tmp_path / "home", seed=3)
    for number, seconds in enumerate((1, 1_700_000_000)):
        (tmp_path / "home" / f"whole seconds {number}").write_bytes(b"x" * 700)
        os.utime(tmp_path / "home" / f"whole seconds {number}", (seconds, seconds))
    os.mkfifo(tmp_path / "home" / "pipe")
    os.link(tmp_path / "home" / "pipe", tmp_path / "home" / "pipe too")
    yield subprocess.run(tar_create(tmp_path / "home"), check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["chmod", "-R", "u+rwx", tmp_path], check=True)


@pytest.mark.parametrize("step", [700, 4096, 4608, 5000, 100_000, 1 << 20])
def test_the_filter_passes_on_what_a_restore_counts_at_any_chunk_size(tar_stream: bytes, step: int) -> None:
    making = ArchiveFilter()
    made = fed(making, tar_stream, step)
    check = RestoreCheck(making.entries)
    assert b"".join(piece for _, piece in check.feed(made)) == made
    check.finish()
    assert (check.entries, check.bytes) == (making.entries, making.bytes)
    assert len(made) % (20 * BLOCK) == 0


@pytest.mark.parametrize("step", [700, 1 << 20])
def test_skimming_headers_gives_the_same_result_as_parsing_them(tar_stream: bytes, step: int) -> None:
    quick, close = ArchiveFilter(), NeverSkimming()
    assert fed(quick, tar_stream, step) == fed(close, tar_stream, step)
    assert (quick.entries, quick.bytes, quick.holes) == (close.entries, close.bytes, close.holes)
    assert quick.left_out == close.left_out
    assert quick.left_out.count == 2
    assert quick.holes == [b"./hole"]


def test_pipes_devices_and_links_to_them_are_left_out() -> None:
    making = ArchiveFilter()
    data = stream(
        HOME,
        entry("./a", content=b"x" * 600),
        entry("./pipe", tarfile.FIFOTYPE, pax_headers={"mtime": "1.5"}),
        entry("./device", tarfile.CHRTYPE),
        entry("./link", tarfile.LNKTYPE, linkname="./pipe"),
        entry("./z"),
    )
    out = b"".join(piece for _, piece in making.feed(data))
    making.finish()
    assert out == stream(HOME, entry("./a", content=b"x" * 600), entry("./z"), end=b"")
    assert making.ending() == bytes(10_240 - len(out))
    assert making.bytes == 10_240
    assert making.left_out.names == ["./pipe", "./device", "./link"]
    assert making.left_out.kinds == {SpecialFile.PIPE: 2, SpecialFile.DEVICE: 1}
    assert making.entries == 3


NOT_TO_BE_RESTORED = {
    "too long a path": stream(HOME, entry("./a", pax_headers={"path": "./" + "n/" * 2500 + "a"})),
    "unknown pax key": stream(HOME, entry("./a", pax_headers={"GNU.dumpdir": "x"})),
    "contiguous file": stream(HOME, entry("./p", tarfile.CONTTYPE)),
    "GNU long name": stream(HOME, entry("././@LongLink", tarfile.GNUTYPE_LONGNAME, content=b"x")),
    "a time with a wrong length": stream(
        HOME, end=pax_block(record(b"mtime", b"1.5").replace(b"13", b"12")) + stream(entry("./a"))
    ),
    "time and an unknown key": stream(HOME, entry("./a", pax_headers={"mtime": "1.5", "comment": "x"})),
    "sparse map beyond the file": stream(HOME, sparse(b"1\n4096\n512\n", 512, "4096")),
    "data after the end": stream(HOME) + stream(entry("./a")),
    "cut off in content": stream(HOME, entry("./a", content=b"x" * 5000))[:2000],
    "cut off in the last block of content": stream(HOME, entry("./a", content=b"x" * 5000), end=b"")[:-512],
    "cut off before the end": stream(HOME, entry("./a", content=b"x" * 5000), end=b""),
}


@pytest.mark.parametrize("name", NOT_TO_BE_RESTORED)
def test_a_stream_that_a_restore_would_reject_fails_the_archive(name: str) -> None:
    with pytest.raises(CorruptedArchive):
        fed(ArchiveFilter(), NOT_TO_BE_RESTORED[name], 1 << 20)
