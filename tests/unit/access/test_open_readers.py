"""The bound on open streams of a user."""

from contextlib import ExitStack

import pytest

from codehub.access.open_readers import MAX_PER_USER, OpenReaders
from codehub.domain.problems import TooManyRequests


def test_a_user_has_so_many_streams_and_leaves_those_of_others() -> None:
    rejected: list[int] = []
    readers = OpenReaders(lambda: rejected.append(1))
    with ExitStack() as streams:
        for _ in range(MAX_PER_USER - 1):
            streams.enter_context(readers.register("u1", lambda: None))
        with readers.register("u1", lambda: None):
            with pytest.raises(TooManyRequests), readers.register("u1", lambda: None):
                pass
            streams.enter_context(readers.register("u2", lambda: None))
        streams.enter_context(readers.register("u1", lambda: None))
    assert rejected == [1]
    assert readers._users == {}
