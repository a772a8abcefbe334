"""Size of a home, measured by a bounded walk.

The home belongs to its user, who may change it during the walk. So each directory is opened
relative to its parent, and never through a symbolic link. No name or size from outside the home
gets into the result.
"""

import os
import time
from dataclasses import dataclass
from heapq import nlargest
from pathlib import Path

from codehub.domain.disk import HomeSize, LargeEntry

MAX_ENTRIES = 1_000_000
MAX_SECONDS = 20.0
MAX_DEPTH = 100
"""Each level of the walk holds a descriptor."""
SLEEP_EVERY, SLEEP = 250, 0.001
"""The walk sleeps after this many entries, to leave about half of the time to the event loop."""
SHOWN = 5
LONGEST_NAME = 80
MAIN_PART = 0.8
"""A directory is shown as its largest entry if that takes this share of it."""


@dataclass(frozen=True)
class WalkLimits:
    entries: int = MAX_ENTRIES
    seconds: float = MAX_SECONDS


def measure(home: Path, limits: WalkLimits | None = None) -> HomeSize:
    """Return the size of a home and its largest entries; raise OSError if it cannot be opened."""
    return _Walk(limits or WalkLimits()).measure(home)


class _Walk:
    def __init__(self, limits: WalkLimits) -> None:
        self._limits = limits
        self._deadline = time.monotonic() + limits.seconds
        self._entries = 0
        self._complete = True
        self._linked: set[int] = set()
        self._device = 0

    def measure(self, home: Path) -> HomeSize:
        fd = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            found = os.fstat(fd)
            self._device = found.st_dev
            total = found.st_blocks * 512
            largest: list[LargeEntry] = []
            with os.scandir(fd) as entries:
                for entry in entries:
                    if self._is_over():
                        break
                    size, main = self._measure_entry(fd, entry, 1)
                    total += size
                    largest = nlargest(SHOWN, [*largest, _shown(entry.name, size, main)], key=_bytes)
        finally:
            os.close(fd)
        return HomeSize(total, self._entries, self._complete, tuple(largest))

    def _measure_entry(
        self, parent: int, entry: "os.DirEntry[str]", depth: int
    ) -> tuple[int, LargeEntry | None]:
        """Return the size of an entry with its content, and its largest direct child."""
        self._entries += 1
        try:
            found = entry.stat(follow_symlinks=False)
            if not entry.is_dir(follow_symlinks=False):
                return self._file(found), None
            if found.st_dev != self._device:
                return 0, None
            return self._directory(parent, entry.name, depth, found.st_blocks * 512)
        except FileNotFoundError:
            return 0, None  # removed meanwhile
        except OSError:
            self._complete = False
            return 0, None

    def _file(self, found: os.stat_result) -> int:
        if found.st_nlink > 1:
            if found.st_ino in self._linked:
                return 0
            self._linked.add(found.st_ino)
        return found.st_blocks * 512

    def _directory(self, parent: int, name: str, depth: int, total: int) -> tuple[int, LargeEntry | None]:
        if depth >= MAX_DEPTH:
            self._complete = False
            return total, None
        main: LargeEntry | None = None
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    if self._is_over():
                        break
                    size, _ = self._measure_entry(fd, entry, depth + 1)
                    total += size
                    if depth == 1 and (main is None or size > main.bytes):
                        main = LargeEntry(entry.name, size)
        finally:
            os.close(fd)
        return total, main

    def _is_over(self) -> bool:
        if self._entries % SLEEP_EVERY == SLEEP_EVERY - 1:
            time.sleep(SLEEP)
        if self._entries >= self._limits.entries or time.monotonic() > self._deadline:
            self._complete = False
            return True
        return False


def _shown(name: str, size: int, main: LargeEntry | None) -> LargeEntry:
    if main is not None and main.bytes >= MAIN_PART * size:
        return LargeEntry(f"{_readable(name)}/{_readable(main.name)}", main.bytes)
    return LargeEntry(_readable(name), size)


def _readable(name: str) -> str:
    """Return a name as a short printable text: names are any bytes, of any length."""
    text = os.fsencode(name).decode("utf-8", "replace")
    text = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1]}…"


def _bytes(entry: LargeEntry) -> int:
    return entry.bytes
