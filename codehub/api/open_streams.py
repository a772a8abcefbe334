"""How many event streams a session and a user may have open in this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from codehub.database.sessions import Session
from codehub.domain.problems import TooManyRequests

MAX_PER_SESSION: Final = 8
MAX_PER_USER: Final = 32


class OpenStreams:
    """Registry of open event streams.

    A session is one browser. Beyond its bound the oldest stream ends, because the newest tab is the one
    that its user looks at, and old streams may belong to connections that are already lost. A user with
    many sessions gets 429: ending a stream in another browser would only make it reconnect.
    """

    def __init__(self) -> None:
        self._users: dict[str, dict[bytes, list[Callable[[], None]]]] = {}

    @contextmanager
    def register(self, session: Session, end: Callable[[], None]) -> Iterator[None]:
        """Count a stream while it is open; `end` ends it in favour of a newer one."""
        open_now = self._users.get(session.user_id, {})
        if len(open_now.get(session.id_hash, ())) >= MAX_PER_SESSION:
            open_now[session.id_hash].pop(0)()
        elif sum(map(len, open_now.values())) >= MAX_PER_USER:
            raise TooManyRequests(
                f"You have {MAX_PER_USER} event streams open. Close pages of CodeHub that you do not use.",
                retry_after=30,
            )
        sessions = self._users.setdefault(session.user_id, {})
        mine = sessions.setdefault(session.id_hash, [])
        mine.append(end)
        try:
            yield
        finally:
            if end in mine:
                mine.remove(end)
            if not mine:
                sessions.pop(session.id_hash, None)
            if not sessions:
                self._users.pop(session.user_id, None)
