"""The API listens for ended sessions whatever its connection may die of."""

import asyncio
from unittest.mock import MagicMock

import asyncpg
import pytest

from codehub.api.session_ends import SessionEnds
from tests.waiting import until


async def test_a_connection_that_is_lost_in_the_middle_of_a_message_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = []

    async def connect(*_: object, **__: object) -> None:
        tries.append(1)
        raise asyncpg.InternalClientError("got result for unknown protocol state 3")

    monkeypatch.setattr(asyncpg, "connect", connect)
    running = asyncio.create_task(SessionEnds("postgresql://nowhere/none", MagicMock()).run())
    await until(lambda: len(tries) > 1 or running.done(), "another try")
    assert not running.done()
    running.cancel()
