"""Codec of archives (ADR 0014): GNU tar handles files; Python compresses, hashes and checks."""

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
from codehub.storage.child_processes import BYTES, PIPE, spawn, tool_failure
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
_COMPRESSION_BUFFER = 16 << 20
_MAX_STDERR = 4 << 20
_CAP_DAC_OVERRIDE = 1

_OCTAL_ESCAPE = re.compile(rb"\\\\|\\([2-3][0-7]{2})")
_SOCKET_WARNING = re.compile(rb"tar: (.*): (?:socket|door) ignored")


def _compression() -> zstandard.ZstdCompressionParameters:
    """Return parameters with bounded memory: the more threads, the smaller the piece of each.

    On one core, compression without threads is faster.
    """
    threads = _CORES if _CORES > 1 else 0
    return zstandard.ZstdCompressionParameters.from_level(
        _LEVEL,
        threads=threads,
        job_size=_COMPRESSION_BUFFER // threads if threads else 0,
        write_checksum=True,
    )


OnProgress = Callable[[int, int], None]
"""Callback for progress: the bytes and the entries so far."""


def _xattr_options() -> list[str]:
    """Return options for attributes: all but SELinux labels as root, else those a user may set."""
    if os.geteuid() == 0:
        return ["--xattrs", "--xattrs-include=*", "--xattrs-exclude=security.selinux"]
    return ["--xattrs", "--xattrs-include=user.*", "--xattrs-include=system.posix_acl_*"]


def _is_transferred(name: bytes) -> bool:
    """Return whether `_xattr_options` include this attribute."""
    return name.startswith((b"user.", b"system.posix_acl_")) or os.geteuid() == 0


# Nearly every file has a pax header, for the fraction of its time. Making these headers equal made
# archives of many small files smaller and faster.
_PAX = "--pax-option=delete=[ac]time,exthdr.name=PaxHeader,exthdr.mtime=0"


def tar_create(home: Path) -> list[str | Path]:
    """Return the command that writes a home as tar to its standard output."""
    dialect = ["--format=posix", _PAX, "--numeric-owner"]
    fidelity = ["--sparse", "--no-acls", *_xattr_options()]
    return ["tar", "--create", *dialect, *fidelity, "-b", "512", "-f", "-", "-C", home, "."]


def _tar_extract(target: Path, owner: int | None) -> list[str | Path]:
    owners = "--same-owner" if os.geteuid() == 0 else "--no-same-owner"
    # A home's user cannot set file capabilities, so one in an archive was made by somebody else.
    privileges = [] if owner is None else ["--xattrs-exclude=security.capability"]
    fidelity = ["--same-permissions", "--no-acls", *_xattr_options(), *privileges]
    dialect = ["--numeric-owner", owners, *fidelity]
    reading = ["--warning=no-timestamp", "--read-full-records", "-b", "512", "-f", "-"]
    return ["tar", "--extract", *dialect, *reading, "-C", target]


class ArchiveStream:
    """Iterable over the bytes of a home's archive; its sizes and hashes are known at the end.

    tar's exit code and its error messages are checked before the iteration ends. So a consumer that
    commits at the end never commits an incomplete archive.
    """

    def __init__(self, home: Path, locks: Sequence[int], on_progress: OnProgress) -> None:
        self._home = home
        self._locks = locks
        self._on_progress = on_progress
        self._filter = ArchiveFilter()
        self._hash = hashlib.sha256()
        self._fingerprint = xxhash.xxh3_128()
        self.bytes = 0
        self.left_out = LeftOut()

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    @property
    def fingerprint(self) -> bytes:
        """XXH3 hash, to compare a copy. It detects accidents, not manipulation.

        It halved the CPU time of reading an archive back, and made archives up to 5 % faster.
        """
        return self._fingerprint.digest()

    @property
    def unpacked(self) -> int:
        return self._filter.bytes

    @property
    def entries(self) -> int:
        return self._filter.entries

    def __iter__(self) -> Iterator[bytes]:
        # Sizes on disk must be final: tar treats a file without blocks as one large hole.
        sync_filesystem(self._home)
        with _stderr_buffer() as stderr:
            command = tar_create(self._home)
            tar = spawn(command, locks=self._locks, locale=BYTES, stdout=PIPE, stderr=stderr.fileno())
            try:
                for chunk in self._compressed(tar, stderr):
                    self._hash.update(chunk)
                    self._fingerprint.update(chunk)
                    self.bytes += len(chunk)
                    yield chunk
            except CorruptedArchive as problem:
                raise CannotArchive(f"the home cannot be archived: {problem.message}") from problem
            finally:
                _kill(tar)
                _output(tar).close()

    def _compressed(self, tar: Popen[bytes], stderr: IO[bytes]) -> Iterator[bytes]:
        chunker = zstandard.ZstdCompressor(compression_params=_compression()).chunker(chunk_size=_CHUNK)
        _widen(_output(tar))
        for chunk in read_ahead(_output(tar).fileno(), _CHUNK):
            for _, piece in self._filter.feed(chunk):
                yield from chunker.compress(piece)
            self._check_holes()
            if os.fstat(stderr.fileno()).st_size > _MAX_STDERR:
                raise CannotArchive(
                    "the home cannot be archived: it has too many sockets, or files that change"
                )
            self._on_progress(self._filter.bytes, self._filter.entries)
        self._check_exit(tar.wait(), stderr)
        self._filter.finish()
        yield from chunker.compress(self._filter.ending())
        yield from chunker.finish()  # type: ignore[no-untyped-call]

    def _check_exit(self, code: int, stderr: IO[bytes]) -> None:
        stderr.seek(0)
        lines = _unescaped(stderr.read()).splitlines()
        sockets = [match for line in lines if (match := _SOCKET_WARNING.fullmatch(line))]
        errors = [line for line in lines if not _SOCKET_WARNING.fullmatch(line)]
        if code != 0 or errors:
            cause = _cause(errors) or f"tar ended with {code}"
            raise CannotArchive(f"the home cannot be archived completely: {cause}")
        self.left_out = self._filter.left_out
        if sockets:
            self.left_out.add(SpecialFile.SOCKET, (match[1] for match in sockets), len(sockets))

    def _check_holes(self) -> None:
        """Raise CannotArchive if a file that tar treated as one large hole has content."""
        for path in self._filter.holes:
            if not _is_hole(self._home, path):
                raise CannotArchive(f"the home cannot be archived: {path!r} changed while it was read")
        self._filter.holes.clear()


def _is_hole(home: Path, path: bytes) -> bool:
    with _opened(home) as directory, _opened(path, dir_fd=directory) as fd:
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
    """Unpack an archive into an empty directory; raise if the archive differs from `fact`.

    With an owner, everything belongs to that user afterwards. Return the entries of other users.
    """
    digest = hashlib.sha256()
    with _stderr_buffer() as stderr, ExitStack() as stack:
        unrestricted = _may_write_everywhere()
        # Making files takes most of the time of restoring small ones, so two processes share it.
        # Each must be able to write into directories that the other has finished.
        count = 2 if unrestricted and _CORES > 1 else 1
        tars = [_Extractor(target, owner, locks, stderr, stack) for _ in range(count)]
        check = RestoreCheck(fact.entries, count, defers_attributes=not unrestricted, owner=owner)
        active = list(tars)
        for chunk in decompressed(_hashed(chunks, digest.update), fact.unpacked):
            pieces = check.feed(chunk)
            while len(active) > check.readers:
                active.pop().finish_early(_pieces_for(pieces, len(active)))
            for number, tar in enumerate(active):
                tar.write(_pieces_for(pieces, number))
            _check_stderr_size(stderr)
            on_progress(check.bytes, check.entries)
        check.finish()
        if (digest.hexdigest(), check.bytes, check.entries) != (fact.sha256, fact.unpacked, fact.entries):
            raise CorruptedArchive(f"the archive {fact.key} is not what its .meta says")
        for tar in tars:
            tar.finish()
        with _opened(target) as directory:
            for entry in check.deferred:
                _set_attributes(directory, entry)
    if owner is not None and check.foreign.count:
        give_all(target, owner, locks)
    return check.foreign


def _pieces_for(pieces: Iterable[Piece], number: int) -> list[memoryview]:
    """Return the pieces for the reader with this number."""
    return [piece for readers, piece in pieces if readers >> number & 1]


def _may_write_everywhere() -> bool:
    """Return whether this process may write regardless of file modes (CAP_DAC_OVERRIDE)."""
    status = Path("/proc/self/status").read_text()
    return bool(int(status.partition("CapEff:")[2].split()[0], 16) >> _CAP_DAC_OVERRIDE & 1)


def _set_attributes(directory: int, entry: Entry) -> None:
    """Set the attributes of a file or directory that is read-only for its owner, CodeHub's user."""
    with _opened(entry.path, dir_fd=directory) as fd:
        os.fchmod(fd, entry.mode | stat.S_IWUSR)
        for attribute in entry.deferred:
            if _is_transferred(attribute.name):
                os.setxattr(fd, attribute.name, attribute.value)
        os.fchmod(fd, entry.mode)


@contextmanager
def _opened(path: Path | bytes, dir_fd: int | None = None) -> Iterator[int]:
    """Open a path relative to a directory: the absolute path may be too long for the system."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


class _Extractor:
    """Child process that unpacks a tar stream, at its own pace."""

    def __init__(
        self, target: Path, owner: int | None, locks: Sequence[int], stderr: IO[bytes], stack: ExitStack
    ) -> None:
        self._stderr = stderr
        self._tar = spawn(_tar_extract(target, owner), locks=locks, stdin=PIPE, stderr=stderr.fileno())
        assert self._tar.stdin is not None
        _widen(self._tar.stdin)
        self._input = WriteBehind(self._tar.stdin)
        stack.callback(self._input.abandon)
        stack.callback(_kill, self._tar)

    def write(self, pieces: Sequence[memoryview]) -> None:
        try:
            self._input.put(pieces)
        except BrokenPipeError:
            _check_extraction(self._tar.wait(), self._stderr)
            raise

    def finish_early(self, pieces: Sequence[memoryview]) -> None:
        """Let tar end before the stream does, and wait until it has unpacked everything.

        `finish` checks the exit code: a corrupted archive is a better error than a failed tar.
        """
        self.write([*pieces, memoryview(bytes(2 * BLOCK))])
        self._end()

    def finish(self) -> None:
        _check_extraction(self._end(), self._stderr)

    def _end(self) -> int:
        with suppress(BrokenPipeError):  # tar's own message is more helpful
            self._input.close()
        return self._tar.wait()


def _check_stderr_size(stderr: IO[bytes]) -> None:
    """Fail early if tar complains about many entries, as its messages take memory."""
    if os.fstat(stderr.fileno()).st_size > _CHUNK:
        _check_extraction(0, stderr)


def _check_extraction(code: int, stderr: IO[bytes]) -> None:
    # Another tar may still be writing at the offset that all of them share.
    lines = os.pread(stderr.fileno(), _CHUNK, 0).splitlines()
    if code != 0 or lines:
        raise tool_failure(f"the archive cannot be unpacked: {_cause(lines) or f'tar ended with {code}'}")


def _cause(lines: Sequence[bytes]) -> str:
    """Return the line that reports a full disk, else the first one; the last is only a summary."""
    texts = [line.decode("utf-8", "backslashreplace").removeprefix("tar: ") for line in lines]
    return next((text for text in texts if reports_full_disk(text)), texts[0] if texts else "")


def _unescaped(message: bytes) -> bytes:
    """Undo the octal escapes of names in tar's messages, which it uses in the C locale."""
    return _OCTAL_ESCAPE.sub(lambda found: bytes([int(found[1], 8)]) if found[1] else found[0], message)


def _hashed(chunks: Iterable[memoryview], update: Callable[[memoryview], None]) -> Iterator[memoryview]:
    """Pass chunks on, and add them to a hash."""
    for chunk in chunks:
        update(chunk)
        yield chunk


def _widen(pipe: IO[bytes]) -> None:
    """Enlarge a pipe, if the system allows it, so that its reader and writer wait less often."""
    with suppress(OSError):
        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _CHUNK)


def _stderr_buffer() -> IO[bytes]:
    """Return a file in memory for tar's messages, which may report a full disk."""
    return os.fdopen(os.memfd_create("tar", os.MFD_CLOEXEC), "w+b")


def _output(child: Popen[bytes]) -> IO[bytes]:
    assert child.stdout is not None
    return child.stdout


def _kill(child: Popen[bytes]) -> None:
    if child.poll() is None:
        child.kill()
    child.wait()
