"""Child processes of a job: they keep its locks as long as they live, and die with it."""

import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from codehub.host.child_process import die_with_parent
from codehub.storage.errors import NoSpace, StorageProblem, reports_full_disk

_libc = ctypes.CDLL(None)

PIPE = subprocess.PIPE

# tar turns the names in pax headers into its locale's charset, and to ASCII it drops some characters without
# a word: it would read another name than the one that was checked. From UTF-8 to UTF-8 nothing changes.
UTF_8 = "C.UTF-8"
BYTES = "C"
"""For a tar that writes: names that are not ASCII go out as they are, and it is faster by a twentieth."""

_LC_CTYPE_MASK = 1
_CODESET = 14
_libc.newlocale.restype = ctypes.c_void_p
_libc.newlocale.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_libc.nl_langinfo_l.restype = ctypes.c_char_p
_libc.nl_langinfo_l.argtypes = (ctypes.c_int, ctypes.c_void_p)


def spawn(
    command: Sequence[str | bytes | Path],
    *,
    locks: Sequence[int] = (),
    locale: str = UTF_8,
    stdin: int | None = subprocess.DEVNULL,
    stdout: int | None = subprocess.DEVNULL,
    stderr: int | None = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    """Start a child from a thread that outlives it: the death signal follows the thread, not the process."""
    check_locale(UTF_8)
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=tuple(locks),
        env={"LC_ALL": locale, "TZ": "UTC0", "PATH": os.environ.get("PATH", os.defpath)},
        preexec_fn=die_with_parent(signal.SIGKILL),
    )


@cache
def check_locale(name: str) -> None:
    """A tool that does not find its locale falls back to ASCII without a word."""
    locale = _libc.newlocale(_LC_CTYPE_MASK, name.encode(), None)
    if not locale or _libc.nl_langinfo_l(_CODESET, locale) != b"UTF-8":
        raise StorageProblem(f"this system has no locale {name}: install it (Debian: the package libc-bin)")


def remove_tree(path: Path, locks: Sequence[int] = ()) -> None:
    """Remove a tree, or nothing when there is none. `rm` copes with depths that recursion does not."""
    if not path.is_symlink() and not path.exists():
        return
    words = run(["rm", "-rf", "--one-file-system", "--", path], locks)
    if words and os.geteuid() != 0:
        # One's own directories may be without permissions; root does not need any.
        run(["chmod", "-R", "u+rwx", "--", path], locks)
        words = run(["rm", "-rf", "--one-file-system", "--", path], locks)
    if words:
        raise StorageProblem(f"{path} cannot be removed: {words}")


def run(command: Sequence[str | Path], locks: Sequence[int]) -> str:
    """Run to the end; the last words of a failure, or nothing."""
    child = spawn(command, locks=locks)
    _, said = child.communicate()
    if child.returncode == 0:
        return ""
    return last_words(said) or f"{command[0]} ended with {child.returncode}"


def last_words(said: bytes) -> str:
    lines = said.decode("utf-8", "backslashreplace").strip().splitlines()
    return lines[-1] if lines else ""


def failure(message: str) -> StorageProblem:
    """The problem behind what a tool said."""
    if reports_full_disk(message):
        return NoSpace(f"{message}; make room on the disk")
    return StorageProblem(message)
