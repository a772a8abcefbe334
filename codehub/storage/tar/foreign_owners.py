"""Entries of an archive that belong to other users: they are given to the home's user."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from codehub.storage.child_processes import run
from codehub.storage.errors import StorageProblem
from codehub.storage.tar.left_out import NAMED, readable

_CHOWN_COMMAND: Final = (
    'cd "$1" && exec find . "(" ! -uid "$2" -o ! -gid "$2" ")" -exec chown --no-dereference -- "$2:$2" "{}" +'
)
"""Paths relative to the home are never too long. The kernel removes setuid and setgid bits and file
capabilities from each file that changes its owner."""


@dataclass
class ForeignEntries:
    """Number of these entries, and the first of their names."""

    count: int = 0
    names: list[str] = field(default_factory=list)

    def add(self, path: bytes) -> None:
        """Count an entry."""
        self.count += 1
        if len(self.names) < NAMED:
            self.names.append(readable(path))

    def sentence(self) -> str:
        """Return a clause for the owner of the workspace, or an empty string if there are none."""
        if not self.count:
            return ""
        entries = "1 entry" if self.count == 1 else f"{self.count} entries"
        names = ", ".join(self.names) + (", ..." if self.count > len(self.names) else "")
        return f"gave {entries} of other users to the workspace's user ({names})"


def give_all(home: Path, owner: int, locks: Sequence[int]) -> None:
    """Make a user the owner of all entries of a home that belong to others."""
    failure = run(["sh", "-c", _CHOWN_COMMAND, "sh", home, str(owner)], locks)
    if failure:
        raise StorageProblem(f"the home cannot be given to its user: {failure}")
