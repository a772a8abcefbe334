"""Bound on the open streams of a user in this process, and their end at shutdown."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from codehub.domain.problems import TooManyRequests

MAX_PER_USER: Final = 256


class OpenReaders:
    """Registry of open streams, of which each user may have some."""

    def __init__(self, on_reject: Callable[[], object] = lambda: None) -> None:
        self._on_reject = on_reject
        self._users: Counter[str] = Counter()
        self._ends: set[Callable[[], None]] = set()

    @contextmanager
    def register(self, user_id: str, end: Callable[[], None]) -> Iterator[None]:
        """Count a stream while it is open. `end` is called to end it at shutdown."""
        self.check(user_id)
        self._users[user_id] += 1
        self._ends.add(end)
        try:
            yield
        finally:
            self._ends.discard(end)
            self._users[user_id] -= 1
            if not self._users[user_id]:
                del self._users[user_id]

    def check(self, user_id: str) -> None:
        """Raise TooManyRequests if the user may open no further stream."""
        if self._users.get(user_id, 0) >= MAX_PER_USER:
            self._on_reject()
            raise TooManyRequests(
                f"You have {MAX_PER_USER} streams, terminals and ports open. Close some of them.",
                retry_after=10,
            )

    def end_all(self) -> None:
        for end in tuple(self._ends):
            end()
