"""Map from digests to small numbers, with bounded memory."""

from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite3 import Connection

_IN_MEMORY = 100_000
_CACHE_KIB = 8 << 10


def digest(path: bytes) -> bytes:
    """Return a key of 16 bytes for a path of any length."""
    return blake2b(path, digest_size=16).digest()


class SpillingMap:
    """Map that keeps a limited number of keys in memory, and all further ones in a private file."""

    def __init__(self, in_memory: int = _IN_MEMORY) -> None:
        self._in_memory = in_memory
        self._first: dict[bytes, int] = {}
        self._overflow: Connection | None = None

    def add(self, key: bytes, value: int) -> bool:
        """Add a key; return False and change nothing if it exists."""
        if key in self._first:
            return False
        if len(self._first) == self._in_memory and self._overflow is None:
            self._overflow = _open_file()
        if self._overflow is None:
            self._first[key] = value
            return True
        done = self._overflow.execute("INSERT OR IGNORE INTO overflow VALUES (?, ?)", (key, value))
        return done.rowcount == 1

    def get(self, key: bytes) -> int | None:
        """Return the value of a key, or None."""
        if key in self._first or self._overflow is None:
            return self._first.get(key)
        found = self._overflow.execute("SELECT value FROM overflow WHERE key = ?", (key,)).fetchone()
        return None if found is None else int(found[0])


def _open_file() -> "Connection | None":
    """Open an unnamed SQLite database: a file that is removed when it is closed.

    Return None, to keep everything in memory, if Python was built without SQLite.
    """
    with suppress(ImportError):
        from sqlite3 import connect  # imported late: few homes need it

        overflow = connect("", isolation_level=None)
        for pragma in (f"PRAGMA cache_size = -{_CACHE_KIB}", "PRAGMA journal_mode = OFF"):
            overflow.execute(pragma)
        overflow.execute("CREATE TABLE overflow (key BLOB PRIMARY KEY, value INTEGER) WITHOUT ROWID")
        overflow.execute("BEGIN")
        return overflow
    return None
