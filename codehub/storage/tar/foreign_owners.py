"""Entries of an archive that belong to another user than the home's, and how the home's user gets them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from codehub.storage.child_processes import run
from codehub.storage.errors import StorageProblem
from codehub.storage.tar.left_out import NAMED, readable

_GIVE: Final = (
    'cd "$1" && exec find . "(" ! -uid "$2" -o ! -gid "$2" ")" -exec chown --no-dereference -- "$2:$2" "{}" +'
)
"""By paths from the home on, which are never too long. The kernel takes setuid and setgid bits and file
capabilities from each file that gets another owner."""


@dataclass
class ForeignEntries:
    """How many there are, and the first of their names."""

    count: int = 0
    names: list[str] = field(default_factory=list)

    def add(self, path: bytes) -> None:
        self.count += 1
        if len(self.names) < NAMED:
            self.names.append(readable(path))

    def sentence(self) -> str:
        """Return what an owner reads; empty if there were none."""
        if not self.count:
            return ""
        entries = "1 entry" if self.count == 1 else f"{self.count} entries"
        names = ", ".join(self.names) + (", ..." if self.count > len(self.names) else "")
        return f"gave {entries} of other users to the workspace's user ({names})"


def give_all(home: Path, owner: int, locks: Sequence[int]) -> None:
    """Make a user the owner of everything in a home that belongs to others."""
    words = run(["sh", "-c", _GIVE, "sh", home, str(owner)], locks)
    if words:
        raise StorageProblem(f"the home cannot be given to its user: {words}")
