"""Bounds on the open event streams of a session or token and of a user, in this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from codehub.database.credentials import Credential
from codehub.domain.problems import TooManyRequests

MAX_PER_SESSION: Final = 8
MAX_PER_USER: Final = 32


class OpenStreams:
    """Registry of open event streams.

    A session is one browser. Beyond its bound, the oldest stream ends: the user looks at the newest tab,
    and old streams may belong to lost connections. A user with many sessions gets 429, because ending a
    stream in another browser would only make it reconnect.
    """

    def __init__(self) -> None:
        self._users: dict[str, dict[bytes, list[Callable[[], None]]]] = {}

    @contextmanager
    def register(self, caller: Credential, end: Callable[[], None]) -> Iterator[None]:
        """Count a stream while it is open. `end` is called to end it in favour of a newer one."""
        streams_by_session = self._users.get(caller.user_id, {})
        if len(streams_by_session.get(caller.id_hash, ())) >= MAX_PER_SESSION:
            streams_by_session[caller.id_hash].pop(0)()
        elif sum(map(len, streams_by_session.values())) >= MAX_PER_USER:
            raise TooManyRequests(
                f"You have {MAX_PER_USER} event streams open. Close pages of CodeHub that you do not use.",
                retry_after=30,
            )
        sessions = self._users.setdefault(caller.user_id, {})
        own_streams = sessions.setdefault(caller.id_hash, [])
        own_streams.append(end)
        try:
            yield
        finally:
            if end in own_streams:
                own_streams.remove(end)
            if not own_streams:
                sessions.pop(caller.id_hash, None)
            if not sessions:
                self._users.pop(caller.user_id, None)
