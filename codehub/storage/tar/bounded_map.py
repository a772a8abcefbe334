"""A map from digests to small numbers that takes little memory however much it holds."""

from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite3 import Connection

_IN_MEMORY = 100_000
_CACHE_KIB = 8 << 10


def digest(path: bytes) -> bytes:
    """A key of 16 bytes, however long a path somebody makes up."""
    return blake2b(path, digest_size=16).digest()


class BoundedMap:
    """Keys of equal length. What comes past a certain number of them goes to a file that nobody else sees."""

    def __init__(self, in_memory: int = _IN_MEMORY) -> None:
        self._in_memory = in_memory
        self._first: dict[bytes, int] = {}
        self._others: Connection | None = None

    def add(self, key: bytes, value: int) -> bool:
        """False, and nothing is changed, when the key is there already."""
        if key in self._first:
            return False
        if len(self._first) == self._in_memory and self._others is None:
            self._others = _in_a_file()
        if self._others is None:
            self._first[key] = value
            return True
        done = self._others.execute("INSERT OR IGNORE INTO others VALUES (?, ?)", (key, value))
        return done.rowcount == 1

    def get(self, key: bytes) -> int | None:
        if key in self._first or self._others is None:
            return self._first.get(key)
        found = self._others.execute("SELECT value FROM others WHERE key = ?", (key,)).fetchone()
        return None if found is None else int(found[0])


def _in_a_file() -> "Connection | None":
    """A database without a name is a file that is gone when it is closed. A Python that was built without
    SQLite keeps everything in memory."""
    with suppress(ImportError):
        from sqlite3 import connect  # few homes need it, and loading it takes every job's time

        others = connect("", isolation_level=None)
        for words in (f"PRAGMA cache_size = -{_CACHE_KIB}", "PRAGMA journal_mode = OFF"):
            others.execute(words)
        others.execute("CREATE TABLE others (key BLOB PRIMARY KEY, value INTEGER) WITHOUT ROWID")
        others.execute("BEGIN")
        return others
    return None
