"""Unpacking of archives (ADR 0014): Python checks and decompresses; GNU tar writes files."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from codehub.domain.observation import ArchiveFact
from codehub.storage.child_processes import PIPE, spawn, tool_failure
from codehub.storage.errors import CorruptedArchive
from codehub.storage.tar import tar_process
from codehub.storage.tar.foreign_owners import ForeignEntries, give_all
from codehub.storage.tar.header import BLOCK, Entry
from codehub.storage.tar.incremental_parser import Piece
from codehub.storage.tar.restore_check import RestoreCheck
from codehub.storage.tar.tar_process import (
    CHUNK,
    OnProgress,
    error_cause,
    is_transferred,
    kill,
    opened,
    stderr_buffer,
    tar_extract,
    widen,
)
from codehub.storage.tar.write_behind import WriteBehind
from codehub.storage.tar.zstd_decompression import decompressed

_CAP_DAC_OVERRIDE = 1


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
    with stderr_buffer() as stderr, ExitStack() as stack:
        unrestricted = _may_write_everywhere()
        # Making files takes most of the time of restoring small ones, so two processes share it. One
        # took 1.19 times as long (median of 7 pairs), on two cores. Each must be able to write into
        # directories that the other has finished.
        count = 2 if unrestricted and tar_process.CORES > 1 else 1
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
        with opened(target) as directory:
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
    with opened(entry.path, dir_fd=directory) as fd:
        os.fchmod(fd, entry.mode | stat.S_IWUSR)
        for attribute in entry.deferred:
            if is_transferred(attribute.name):
                os.setxattr(fd, attribute.name, attribute.value)
        os.fchmod(fd, entry.mode)


class _Extractor:
    """Child process that unpacks a tar stream, at its own pace."""

    def __init__(
        self, target: Path, owner: int | None, locks: Sequence[int], stderr: IO[bytes], stack: ExitStack
    ) -> None:
        self._stderr = stderr
        self._tar = spawn(tar_extract(target, owner), locks=locks, stdin=PIPE, stderr=stderr.fileno())
        assert self._tar.stdin is not None
        widen(self._tar.stdin)
        self._input = WriteBehind(self._tar.stdin)
        stack.callback(self._input.abandon)
        stack.callback(kill, self._tar)

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
    if os.fstat(stderr.fileno()).st_size > CHUNK:
        _check_extraction(0, stderr)


def _check_extraction(code: int, stderr: IO[bytes]) -> None:
    # Another tar may still be writing at the offset that all of them share.
    lines = os.pread(stderr.fileno(), CHUNK, 0).splitlines()
    if code != 0 or lines:
        raise tool_failure(
            f"the archive cannot be unpacked: {error_cause(lines) or f'tar ended with {code}'}"
        )


def _hashed(chunks: Iterable[memoryview], update: Callable[[memoryview], None]) -> Iterator[memoryview]:
    """Pass chunks on, and add them to a hash."""
    for chunk in chunks:
        update(chunk)
        yield chunk
