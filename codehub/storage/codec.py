"""A home as `tar.zst`, and back: GNU tar does the files, Python compresses, hashes and distrusts."""

import errno
import fcntl
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from subprocess import Popen
from typing import IO

import zstandard

from codehub.domain.observation import ArchiveFact
from codehub.storage.children import PIPE, failure, spawn
from codehub.storage.durable import sync_filesystem
from codehub.storage.errors import CorruptedArchive, Unpackable, says_no_space
from codehub.storage.readahead import read_ahead
from codehub.storage.tarcheck import TarCheck
from codehub.storage.tarheader import BLOCK
from codehub.storage.tarmaking import TarMaking
from codehub.storage.tarstream import Piece

_CHUNK = 1 << 20
_LEVEL = 3
_THREADS = min(4, os.cpu_count() or 1)
_MAX_WINDOW = 128 << 20
_CAP_DAC_OVERRIDE = 1

# What one call decompresses cannot be bounded otherwise: 4 KiB can become 128 MiB of zeros.
_COMPRESSED_STEP = 4 << 10

_IGNORED = re.compile(rb"tar: (.*): (?:socket|door) ignored")

OnProgress = Callable[[int, int], None]
"""Called with the bytes and the entries that have passed so far."""


def _xattr_options() -> list[str]:
    """Root moves every attribute but the host's own labels; others move those they may set."""
    if os.geteuid() == 0:
        return ["--xattrs", "--xattrs-include=*", "--xattrs-exclude=security.selinux"]
    return ["--xattrs", "--xattrs-include=user.*", "--xattrs-include=system.posix_acl_*"]


def _tar_create(home: Path) -> list[str | Path]:
    dialect = ["--format=posix", "--pax-option=delete=atime,delete=ctime", "--numeric-owner"]
    fidelity = ["--sparse", "--no-acls", *_xattr_options()]
    return ["tar", "--create", *dialect, *fidelity, "-b", "512", "-f", "-", "-C", home, "."]


def _tar_extract(target: Path) -> list[str | Path]:
    owner = "--same-owner" if os.geteuid() == 0 else "--no-same-owner"
    dialect = ["--numeric-owner", owner, "--same-permissions", "--no-acls", *_xattr_options()]
    reading = ["--warning=no-timestamp", "--read-full-records", "-b", "512", "-f", "-"]
    return ["tar", "--extract", *dialect, *reading, "-C", target]


class Packing:
    """One pass over a home. Iterate over it for the compressed stream; what it was is known afterwards.

    tar's exit code and last words are judged before the stream ends, so that a consumer that commits at its
    end never commits an incomplete one.
    """

    def __init__(self, home: Path, locks: Sequence[int], on_progress: OnProgress) -> None:
        self._home = home
        self._locks = locks
        self._on_progress = on_progress
        self._check = TarMaking()
        self._hash = hashlib.sha256()
        self.bytes = 0
        self.left_out: list[str] = []

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    @property
    def unpacked(self) -> int:
        return self._check.bytes

    @property
    def entries(self) -> int:
        return self._check.entries

    def __iter__(self) -> Iterator[bytes]:
        # Sizes on disk must be settled: tar takes a file without blocks for one great hole.
        sync_filesystem(self._home)
        with tempfile.TemporaryFile() as said:
            tar = spawn(_tar_create(self._home), locks=self._locks, stdout=PIPE, stderr=said.fileno())
            try:
                for chunk in self._compressed(tar, said):
                    self._hash.update(chunk)
                    self.bytes += len(chunk)
                    yield chunk
            except CorruptedArchive as problem:
                raise Unpackable(f"the home cannot be archived: {problem.message}") from problem
            finally:
                _end(tar)

    def _compressed(self, tar: Popen[bytes], said: IO[bytes]) -> Iterator[bytes]:
        compressor = zstandard.ZstdCompressor(level=_LEVEL, threads=_THREADS, write_checksum=True)
        chunker = compressor.chunker(chunk_size=_CHUNK)
        assert tar.stdout is not None
        _widen(tar.stdout)
        for chunk in read_ahead(tar.stdout.fileno(), _CHUNK):
            for _, piece in self._check.feed(chunk):
                yield from chunker.compress(piece)
            self._on_progress(self._check.bytes, self._check.entries)
        self._judge(tar.wait(), said)
        self._check.finish()
        self._check_holes()
        yield from chunker.compress(self._check.ending())
        yield from chunker.finish()  # type: ignore[no-untyped-call]

    def _judge(self, code: int, said: IO[bytes]) -> None:
        said.seek(0)
        lines = said.read().splitlines()
        ignored = [match for line in lines if (match := _IGNORED.fullmatch(line))]
        others = [line for line in lines if not _IGNORED.fullmatch(line)]
        if code != 0 or others:
            words = _words(others) or f"tar ended with {code}"
            raise Unpackable(f"the home cannot be archived completely: {words}")
        names = [match[1] for match in ignored] + list(self._check.left_out)
        self.left_out = sorted(name.decode("utf-8", "backslashreplace") for name in names)

    def _check_holes(self) -> None:
        """A file that tar took for one great hole must be one."""
        for path in self._check.holes:
            fd = os.open(os.fsencode(self._home) + b"/" + path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.lseek(fd, 0, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
            else:
                raise Unpackable(f"the home cannot be archived: {path!r} changed while it was read")
            finally:
                os.close(fd)


def unpack(
    chunks: Iterable[memoryview],
    fact: ArchiveFact,
    target: Path,
    locks: Sequence[int],
    on_progress: OnProgress,
) -> None:
    """Fill an empty directory from an archive that is exactly what `fact` says; otherwise raise."""
    digest = hashlib.sha256()
    with tempfile.TemporaryFile() as said, ExitStack() as stack:
        tars = [_extractor(target, locks, said, stack) for _ in range(_extractors())]
        check = TarCheck(max_entries=fact.entries, max_bytes=fact.unpacked, readers=len(tars))
        for chunk in _decompressed(_hashed(chunks, digest.update)):
            pieces = check.feed(chunk)
            while len(tars) > check.readers:
                _forward(pieces, len(tars) - 1, tars[-1], said)
                _dismiss(tars.pop(), said)
            for number, tar in enumerate(tars):
                _forward(pieces, number, tar, said)
            on_progress(check.bytes, check.entries)
        check.finish()
        if (digest.hexdigest(), check.bytes, check.entries) != (fact.sha256, fact.unpacked, fact.entries):
            raise CorruptedArchive(f"the archive {fact.key} is not what its .meta says")
        for tar in tars:
            _input(tar).close()
        for tar in tars:
            _judge_extraction(tar.wait(), said)


def _extractors() -> int:
    """Two unpack many small files faster than one, where both may write into what either has finished."""
    status = Path("/proc/self/status").read_text()
    may_all = int(status.partition("CapEff:")[2].split()[0], 16) >> _CAP_DAC_OVERRIDE & 1
    return 2 if may_all and _THREADS > 1 else 1


def _extractor(target: Path, locks: Sequence[int], said: IO[bytes], stack: ExitStack) -> Popen[bytes]:
    tar = spawn(_tar_extract(target), locks=locks, stdin=PIPE, stderr=said.fileno())
    stack.callback(_end, tar)
    _widen(_input(tar))
    return tar


def _input(tar: Popen[bytes]) -> IO[bytes]:
    assert tar.stdin is not None
    return tar.stdin


def _forward(pieces: Iterable[Piece], number: int, tar: Popen[bytes], said: IO[bytes]) -> None:
    """Give a tar those pieces that are for the reader of this number."""
    try:
        for goes, piece in pieces:
            if goes >> number & 1:
                _input(tar).write(piece)
        _input(tar).flush()
    except BrokenPipeError:
        _judge_extraction(tar.wait(), said)
        raise


def _dismiss(tar: Popen[bytes], said: IO[bytes]) -> None:
    """Let a tar end before the stream does; all it was given is then in its place."""
    _forward([(1, memoryview(bytes(2 * BLOCK)))], 0, tar, said)
    _input(tar).close()
    _judge_extraction(tar.wait(), said)


def _judge_extraction(code: int, said: IO[bytes]) -> None:
    # Another tar may still be writing, at the position that all of them share.
    lines = os.pread(said.fileno(), _CHUNK, 0).splitlines()
    if code != 0 or lines:
        raise failure(f"the archive cannot be unpacked: {_words(lines) or f'tar ended with {code}'}")


def _words(lines: Sequence[bytes]) -> str:
    """A full disk is the cause if a line says so, else the first; the last only says that there was one."""
    texts = [line.decode("utf-8", "backslashreplace").removeprefix("tar: ") for line in lines]
    return next((text for text in texts if says_no_space(text)), texts[0] if texts else "")


def _hashed(chunks: Iterable[memoryview], update: Callable[[memoryview], None]) -> Iterator[memoryview]:
    for chunk in chunks:
        update(chunk)
        yield chunk


def _decompressed(chunks: Iterable[memoryview]) -> Iterator[bytes]:
    """Exactly one zstd frame, and nothing behind it."""
    frame = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompressobj()
    waiting: list[bytes] = []
    size = 0
    try:
        for chunk in chunks:
            for start in range(0, len(chunk), _COMPRESSED_STEP):
                if frame.eof:
                    raise CorruptedArchive("there is data behind the archive")
                piece = frame.decompress(chunk[start : start + _COMPRESSED_STEP])
                waiting.append(piece)
                size += len(piece)
                if size >= _CHUNK:
                    yield b"".join(waiting)
                    waiting, size = [], 0
    except zstandard.ZstdError as error:
        raise CorruptedArchive(f"the archive cannot be decompressed: {error}") from error
    if not frame.eof:
        raise CorruptedArchive("the archive is cut off")
    if frame.unused_data:
        raise CorruptedArchive("there is data behind the archive")
    yield b"".join(waiting)


def _widen(pipe: IO[bytes]) -> None:
    """A larger pipe is faster; a system that does not allow it is only slower."""
    with suppress(OSError):
        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _CHUNK)


def _end(child: Popen[bytes]) -> None:
    """Whatever happened, the child is dead and its pipes are closed."""
    if child.poll() is None:
        child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
