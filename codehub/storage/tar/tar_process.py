"""Processes of GNU tar: command lines, pipes and error messages."""

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen
from typing import IO, Final

from codehub.storage.errors import reports_full_disk

CHUNK: Final = 1 << 20
CORES = min(4, len(os.sched_getaffinity(0)))
"""Threads of the compression; a restore runs two tar processes if there is more than one core."""

OnProgress = Callable[[int, int], None]
"""Callback for progress: the bytes and the entries so far."""


def _xattr_options() -> list[str]:
    """Return options for attributes: all but SELinux labels as root, else those a user may set."""
    if os.geteuid() == 0:
        return ["--xattrs", "--xattrs-include=*", "--xattrs-exclude=security.selinux"]
    return ["--xattrs", "--xattrs-include=user.*", "--xattrs-include=system.posix_acl_*"]


def is_transferred(name: bytes) -> bool:
    """Return whether `_xattr_options` include this attribute."""
    return name.startswith((b"user.", b"system.posix_acl_")) or os.geteuid() == 0


# Nearly every file has a pax header, for the fraction of its time. Unless these headers are equal,
# archives of 40,000 small files take 1.19 times as long (median of 7 pairs) and are 3 % larger.
_PAX = "--pax-option=delete=[ac]time,exthdr.name=PaxHeader,exthdr.mtime=0"


def tar_create(home: Path) -> list[str | Path]:
    """Return the command that writes a home as tar to its standard output."""
    dialect = ["--format=posix", _PAX, "--numeric-owner"]
    fidelity = ["--sparse", "--no-acls", *_xattr_options()]
    return ["tar", "--create", *dialect, *fidelity, "-b", "512", "-f", "-", "-C", home, "."]


def tar_extract(target: Path, owner: int | None) -> list[str | Path]:
    """Return the command that unpacks tar from its standard input into a directory."""
    owners = "--same-owner" if os.geteuid() == 0 else "--no-same-owner"
    # A home's user cannot set file capabilities, so one in an archive was made by somebody else.
    privileges = [] if owner is None else ["--xattrs-exclude=security.capability"]
    fidelity = ["--same-permissions", "--no-acls", *_xattr_options(), *privileges]
    dialect = ["--numeric-owner", owners, *fidelity]
    reading = ["--warning=no-timestamp", "--read-full-records", "-b", "512", "-f", "-"]
    return ["tar", "--extract", *dialect, *reading, "-C", target]


@contextmanager
def opened(path: Path | bytes, dir_fd: int | None = None) -> Iterator[int]:
    """Open a path relative to a directory: the absolute path may be too long for the system."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def widen(pipe: IO[bytes]) -> None:
    """Enlarge a pipe, if the system allows it, so that its reader and writer wait less often."""
    with suppress(OSError):
        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, CHUNK)


def stderr_buffer() -> IO[bytes]:
    """Return a file in memory for tar's messages, which may report a full disk."""
    return os.fdopen(os.memfd_create("tar", os.MFD_CLOEXEC), "w+b")


def error_cause(lines: Sequence[bytes]) -> str:
    """Return the line that reports a full disk, else the first one; the last is only a summary."""
    texts = [line.decode("utf-8", "backslashreplace").removeprefix("tar: ") for line in lines]
    return next((text for text in texts if reports_full_disk(text)), texts[0] if texts else "")


def kill(child: Popen[bytes]) -> None:
    """Kill a child, if it is running, and reap it."""
    if child.poll() is None:
        child.kill()
    child.wait()
