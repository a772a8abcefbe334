"""Mount namespace in which a part's user can read trees below directories that only root may enter.

An interpreter or a checkout in /root is such a case. In the namespace, /root is an empty directory
that holds only the trees that the part needs.
"""

import ctypes
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

_CLONE_NEWNS: Final = 0x00020000
_MS_NOSUID: Final = 0x2
_MS_NODEV: Final = 0x4
_MS_BIND: Final = 0x1000
_MS_REC: Final = 0x4000
_MS_SLAVE: Final = 0x80000

_libc = ctypes.CDLL(None, use_errno=True)


def closed_directories(trees: Iterable[Path]) -> dict[str, list[str]]:
    """Return the directories above the trees that others may not enter, each with its trees."""
    found: dict[str, list[str]] = {}
    for tree in sorted({path for given in trees for path in (given.absolute(), given.resolve())}):
        closed = next((above for above in reversed(tree.parents) if _is_closed(above)), None)
        if closed is None:
            continue
        below = found.setdefault(str(closed.resolve()), [])
        path = closed.resolve() / tree.relative_to(closed)
        if not any(path.is_relative_to(other) for other in below):
            below.append(str(path))
    return found


def _is_closed(directory: Path) -> bool:
    try:
        return not directory.stat().st_mode & 0o001
    except FileNotFoundError:  # an archive store that is not claimed yet, or not mounted
        return False


def enter_mount_namespace(trees: Mapping[str, Iterable[str]]) -> None:
    """Move this process to a mount namespace with only these trees below closed directories."""
    _check(_libc.unshare(_CLONE_NEWNS))
    _mount(None, "/", None, _MS_REC | _MS_SLAVE)
    for closed, below in trees.items():
        present = [tree for tree in below if os.path.lexists(tree)]
        opened = {tree: os.open(tree, os.O_PATH | os.O_CLOEXEC) for tree in present}
        _mount("tmpfs", closed, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0711,size=64k")
        for tree, descriptor in opened.items():
            Path(tree).mkdir(mode=0o755, parents=True)
            _mount(f"/proc/self/fd/{descriptor}", tree, None, _MS_BIND | _MS_REC)
            os.close(descriptor)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    _check(_libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"a mount namespace cannot be made ({os.strerror(number)})")
