"""What listens to PostgreSQL for the life of a process outlives every way to lose a connection."""

import asyncio
from collections.abc import Callable
from unittest.mock import MagicMock

import asyncpg
import pytest

from codehub.api.stream_revocation import SessionEnds
from codehub.gateway.push_channel import PushChannel
from tests.waiting import until


@pytest.mark.parametrize("listener", [PushChannel, SessionEnds])
async def test_a_connection_that_breaks_in_the_middle_of_a_message_is_made_again(
    listener: Callable[..., PushChannel | SessionEnds], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    async def connect(*_: object, **__: object) -> None:
        tries.append(1)
        raise asyncpg.InternalClientError("got result for unknown protocol state 3")

    monkeypatch.setattr(asyncpg, "connect", connect)
    running = asyncio.create_task(listener("postgresql://nowhere/none", MagicMock()).run())
    await until(lambda: len(tries) > 1 or running.done(), "another try")
    assert not running.done()
    running.cancel()
