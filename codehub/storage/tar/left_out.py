"""Sockets, pipes and devices, which an archive leaves out. The timeline names some of them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

NAMED: Final = 5
_MAX_CHARACTERS: Final = 80


class SpecialFile(IntEnum):
    """Kind of a file that cannot be archived."""

    SOCKET = 1
    PIPE = 2
    DEVICE = 3


@dataclass
class LeftOut:
    """Number of special files of each kind, and the first of their names."""

    kinds: Counter[SpecialFile] = field(default_factory=Counter)
    names: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return self.kinds.total()

    def add(self, kind: SpecialFile, paths: Iterable[bytes], count: int = 1) -> None:
        """Count special files of this kind; `paths` are the first of their paths."""
        self.kinds[kind] += count
        for path in paths:
            if len(self.names) == NAMED:
                return
            self.names.append(readable(path))

    def sentence(self) -> str:
        """Return a clause for the workspace's owner, or an empty string if there are none."""
        if not self.count:
            return ""
        parts = [
            f"{self.kinds[kind]} {kind.name.lower()}{'s' if self.kinds[kind] > 1 else ''}"
            for kind in SpecialFile
            if self.kinds[kind]
        ]
        kinds = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
        names = ", ".join(sorted(self.names)) + (", ..." if self.count > len(self.names) else "")
        return f"left out {kinds}: {'it' if self.count == 1 else 'they'} cannot be archived ({names})"


def readable(path: bytes) -> str:
    """Return a path as one short line: names may contain newlines or bidi control characters."""
    text = path.decode("utf-8", "backslashreplace")
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return shown if len(shown) <= _MAX_CHARACTERS else f"{shown[: _MAX_CHARACTERS - 3]}..."
