"""A home as `tar.zst`, and back: GNU tar does the files, Python compresses, hashes and distrusts."""

import errno
import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from subprocess import Popen
from typing import IO

import xxhash
import zstandard

from codehub.domain.observation import ArchiveFact
from codehub.host.filesystem_sync import sync_filesystem
from codehub.storage.child_processes import BYTES, PIPE, failure, spawn
from codehub.storage.errors import CannotArchive, CorruptedArchive, reports_full_disk
from codehub.storage.tar.archive_filter import ArchiveFilter
from codehub.storage.tar.foreign_owners import ForeignEntries, give_all
from codehub.storage.tar.header import BLOCK, Entry
from codehub.storage.tar.left_out import LeftOut, SpecialFile
from codehub.storage.tar.read_ahead import read_ahead
from codehub.storage.tar.restore_check import RestoreCheck
from codehub.storage.tar.stream import Piece
from codehub.storage.tar.write_behind import WriteBehind
from codehub.storage.tar.zstd_frame import decompressed

_CHUNK = 1 << 20
_LEVEL = 3
_CORES = min(4, len(os.sched_getaffinity(0)))
_PIECES = 16 << 20
_MOST_WORDS = 4 << 20
_CAP_DAC_OVERRIDE = 1

_IN_OCTAL = re.compile(rb"\\\\|\\([2-3][0-7]{2})")
_IGNORED = re.compile(rb"tar: (.*): (?:socket|door) ignored")


def _compression() -> zstandard.ZstdCompressionParameters:
    """Each thread holds a few pieces of the stream; where there are many threads, smaller ones.

    On one core threads would only be in each other's way.
    """
    threads = _CORES if _CORES > 1 else 0
    return zstandard.ZstdCompressionParameters.from_level(
        _LEVEL, threads=threads, job_size=_PIECES // threads if threads else 0, write_checksum=True
    )


OnProgress = Callable[[int, int], None]
"""Called with the bytes and the entries that have passed so far."""


def _xattr_options() -> list[str]:
    """Root moves every attribute but the host's own labels; others move those they may set."""
    if os.geteuid() == 0:
        return ["--xattrs", "--xattrs-include=*", "--xattrs-exclude=security.selinux"]
    return ["--xattrs", "--xattrs-include=user.*", "--xattrs-include=system.posix_acl_*"]


def _is_moved(name: bytes) -> bool:
    """As these options have it."""
    return name.startswith((b"user.", b"system.posix_acl_")) or os.geteuid() == 0


# Nearly every file has a pax header, for the fraction of its time. Alike, they cost the compressor less.
_PAX = "--pax-option=delete=[ac]time,exthdr.name=PaxHeader,exthdr.mtime=0"


def tar_create(home: Path) -> list[str | Path]:
    dialect = ["--format=posix", _PAX, "--numeric-owner"]
    fidelity = ["--sparse", "--no-acls", *_xattr_options()]
    return ["tar", "--create", *dialect, *fidelity, "-b", "512", "-f", "-", "-C", home, "."]


def _tar_extract(target: Path, owner: int | None) -> list[str | Path]:
    owners = "--same-owner" if os.geteuid() == 0 else "--no-same-owner"
    # A home's user cannot set capabilities of files, so one that an archive brings is of another's making.
    privileges = [] if owner is None else ["--xattrs-exclude=security.capability"]
    fidelity = ["--same-permissions", "--no-acls", *_xattr_options(), *privileges]
    dialect = ["--numeric-owner", owners, *fidelity]
    reading = ["--warning=no-timestamp", "--read-full-records", "-b", "512", "-f", "-"]
    return ["tar", "--extract", *dialect, *reading, "-C", target]


class ArchiveStream:
    """One pass over a home. Iterate over it for the compressed stream; what it was is known afterwards.

    tar's exit code and last words are judged before the stream ends, so that a consumer that commits at its
    end never commits an incomplete one.
    """

    def __init__(self, home: Path, locks: Sequence[int], on_progress: OnProgress) -> None:
        self._home = home
        self._locks = locks
        self._on_progress = on_progress
        self._check = ArchiveFilter()
        self._hash = hashlib.sha256()
        self._fingerprint = xxhash.xxh3_128()
        self.bytes = 0
        self.left_out = LeftOut()

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    @property
    def fingerprint(self) -> bytes:
        """Tells whether a copy is the same as fast as it can be read; against chance, not against anybody."""
        return self._fingerprint.digest()

    @property
    def unpacked(self) -> int:
        return self._check.bytes

    @property
    def entries(self) -> int:
        return self._check.entries

    def __iter__(self) -> Iterator[bytes]:
        # Sizes on disk must be settled: tar takes a file without blocks for one great hole.
        sync_filesystem(self._home)
        with _words_of_tar() as said:
            command = tar_create(self._home)
            tar = spawn(command, locks=self._locks, locale=BYTES, stdout=PIPE, stderr=said.fileno())
            try:
                for chunk in self._compressed(tar, said):
                    self._hash.update(chunk)
                    self._fingerprint.update(chunk)
                    self.bytes += len(chunk)
                    yield chunk
            except CorruptedArchive as problem:
                raise CannotArchive(f"the home cannot be archived: {problem.message}") from problem
            finally:
                _kill(tar)
                _output(tar).close()

    def _compressed(self, tar: Popen[bytes], said: IO[bytes]) -> Iterator[bytes]:
        chunker = zstandard.ZstdCompressor(compression_params=_compression()).chunker(chunk_size=_CHUNK)
        _widen(_output(tar))
        for chunk in read_ahead(_output(tar).fileno(), _CHUNK):
            for _, piece in self._check.feed(chunk):
                yield from chunker.compress(piece)
            self._check_holes()
            if os.fstat(said.fileno()).st_size > _MOST_WORDS:
                raise CannotArchive(
                    "the home cannot be archived: it has too many sockets, or files that change"
                )
            self._on_progress(self._check.bytes, self._check.entries)
        self._judge(tar.wait(), said)
        self._check.finish()
        yield from chunker.compress(self._check.ending())
        yield from chunker.finish()  # type: ignore[no-untyped-call]

    def _judge(self, code: int, said: IO[bytes]) -> None:
        said.seek(0)
        lines = _readable(said.read()).splitlines()
        ignored = [match for line in lines if (match := _IGNORED.fullmatch(line))]
        others = [line for line in lines if not _IGNORED.fullmatch(line)]
        if code != 0 or others:
            words = _words(others) or f"tar ended with {code}"
            raise CannotArchive(f"the home cannot be archived completely: {words}")
        self.left_out = self._check.left_out
        if ignored:
            self.left_out.add(SpecialFile.SOCKET, (match[1] for match in ignored), len(ignored))

    def _check_holes(self) -> None:
        """A file that tar took for one great hole must be one."""
        for path in self._check.holes:
            if not _is_hole(self._home, path):
                raise CannotArchive(f"the home cannot be archived: {path!r} changed while it was read")
        self._check.holes.clear()


def _is_hole(home: Path, path: bytes) -> bool:
    with _opened(home) as place, _opened(path, dir_fd=place) as fd:
        try:
            os.lseek(fd, 0, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return True
    return False


def unpack(
    chunks: Iterable[memoryview],
    fact: ArchiveFact,
    target: Path,
    locks: Sequence[int],
    on_progress: OnProgress,
    owner: int | None = None,
) -> ForeignEntries:
    """Fill an empty directory from an archive that is exactly what `fact` says; otherwise raise.

    With an owner, everything belongs to that user afterwards. Return what belonged to others.
    """
    digest = hashlib.sha256()
    with _words_of_tar() as said, ExitStack() as stack:
        mighty = _may_write_everywhere()
        # Two unpack faster than one, where both may write into what either has finished.
        tars = [
            _Extractor(target, owner, locks, said, stack) for _ in range(2 if mighty and _CORES > 1 else 1)
        ]
        check = RestoreCheck(fact.entries, len(tars), unlocks=not mighty, owner=owner)
        working = list(tars)
        for chunk in decompressed(_hashed(chunks, digest.update), fact.unpacked):
            pieces = check.feed(chunk)
            while len(working) > check.readers:
                working.pop().dismiss(_of(pieces, len(working)))
            for number, tar in enumerate(working):
                tar.give(_of(pieces, number))
            _check_words(said)
            on_progress(check.bytes, check.entries)
        check.finish()
        if (digest.hexdigest(), check.bytes, check.entries) != (fact.sha256, fact.unpacked, fact.entries):
            raise CorruptedArchive(f"the archive {fact.key} is not what its .meta says")
        for tar in tars:
            tar.finish()
        with _opened(target) as place:
            for entry in check.locked:
                _set_attributes(place, entry)
    if owner is not None and check.foreign.count:
        give_all(target, owner, locks)
    return check.foreign


def _of(pieces: Iterable[Piece], number: int) -> list[memoryview]:
    """Those that are for the reader of this number."""
    return [piece for goes, piece in pieces if goes >> number & 1]


def _may_write_everywhere() -> bool:
    """Whatever the modes of files say."""
    status = Path("/proc/self/status").read_text()
    return bool(int(status.partition("CapEff:")[2].split()[0], 16) >> _CAP_DAC_OVERRIDE & 1)


def _set_attributes(place: int, entry: Entry) -> None:
    """Of a file or folder that is read-only to us, who own it."""
    with _opened(entry.path, dir_fd=place) as fd:
        os.fchmod(fd, entry.mode | stat.S_IWUSR)
        for attribute in entry.locked:
            if _is_moved(attribute.name):
                os.setxattr(fd, attribute.name, attribute.value)
        os.fchmod(fd, entry.mode)


@contextmanager
def _opened(path: Path | bytes, dir_fd: int | None = None) -> Iterator[int]:
    """Below a directory rather than by its whole path, which may be longer than a system allows."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


class _Extractor:
    """A tar that unpacks what it is given; each at its own pace."""

    def __init__(
        self, target: Path, owner: int | None, locks: Sequence[int], said: IO[bytes], stack: ExitStack
    ) -> None:
        self._said = said
        self._tar = spawn(_tar_extract(target, owner), locks=locks, stdin=PIPE, stderr=said.fileno())
        assert self._tar.stdin is not None
        _widen(self._tar.stdin)
        self._input = WriteBehind(self._tar.stdin)
        stack.callback(self._input.abandon)
        stack.callback(_kill, self._tar)

    def give(self, pieces: Sequence[memoryview]) -> None:
        try:
            self._input.put(pieces)
        except BrokenPipeError:
            _judge_extraction(self._tar.wait(), self._said)
            raise

    def dismiss(self, pieces: Sequence[memoryview]) -> None:
        """Let it end before the stream does; all it was given is then in its place.

        How it ended is judged with the others: that the archive is corrupted would be told by its end.
        """
        self.give([*pieces, memoryview(bytes(2 * BLOCK))])
        self._end()

    def finish(self) -> None:
        _judge_extraction(self._end(), self._said)

    def _end(self) -> int:
        with suppress(BrokenPipeError):  # its own words tell more
            self._input.close()
        return self._tar.wait()


def _check_words(said: IO[bytes]) -> None:
    """A tar that has something to say about every entry would fill the disk with it."""
    if os.fstat(said.fileno()).st_size > _CHUNK:
        _judge_extraction(0, said)


def _judge_extraction(code: int, said: IO[bytes]) -> None:
    # Another tar may still be writing, at the position that all of them share.
    lines = os.pread(said.fileno(), _CHUNK, 0).splitlines()
    if code != 0 or lines:
        raise failure(f"the archive cannot be unpacked: {_words(lines) or f'tar ended with {code}'}")


def _words(lines: Sequence[bytes]) -> str:
    """A full disk is the cause if a line says so, else the first; the last only says that there was one."""
    texts = [line.decode("utf-8", "backslashreplace").removeprefix("tar: ") for line in lines]
    return next((text for text in texts if reports_full_disk(text)), texts[0] if texts else "")


def _readable(words: bytes) -> bytes:
    """What tar says where it takes no byte above ASCII for a letter: those it shows in octal."""
    return _IN_OCTAL.sub(lambda found: bytes([int(found[1], 8)]) if found[1] else found[0], words)


def _hashed(chunks: Iterable[memoryview], update: Callable[[memoryview], None]) -> Iterator[memoryview]:
    for chunk in chunks:
        update(chunk)
        yield chunk


def _widen(pipe: IO[bytes]) -> None:
    """A larger pipe is faster; a system that does not allow it is only slower."""
    with suppress(OSError):
        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _CHUNK)


def _words_of_tar() -> IO[bytes]:
    """In memory: a full disk, which they may tell of, would take none."""
    return os.fdopen(os.memfd_create("tar", os.MFD_CLOEXEC), "w+b")


def _output(child: Popen[bytes]) -> IO[bytes]:
    assert child.stdout is not None
    return child.stdout


def _kill(child: Popen[bytes]) -> None:
    if child.poll() is None:
        child.kill()
    child.wait()
