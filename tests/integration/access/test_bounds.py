"""Bounds on what one user makes the access part hold."""

import asyncio
from typing import Any

from starlette.types import Message

from codehub.access.app import ANSWERS_AT_ONCE
from tests.integration.access.test_authorization import EXECS, Fixture, fixture
from tests.waiting import until

__all__ = ["fixture"]


class SlowReaders:
    """Clients that do not read their answers until `read` is set."""

    def __init__(self, fixture: Fixture) -> None:
        self._fixture = fixture
        self.answered: list[int] = []
        self.read = asyncio.Event()

    async def get(self, path: str) -> None:
        async def receive() -> Message:
            await self.read.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.answered.append(message["status"])
            await self.read.wait()

        headers = [(b"cookie", self._fixture.cookie("owner")["Cookie"].encode())]
        scope: dict[str, Any] = {
            "type": "http", "method": "GET", "path": path, "headers": headers, "query_string": b"",
        }  # fmt: skip
        await self._fixture.app(scope, receive, send)


async def test_few_whole_answers_of_a_user_are_in_memory_at_a_time(fixture: Fixture) -> None:
    readers, path = SlowReaders(fixture), EXECS.format(workspace_id=fixture.workspace_id)
    calls = [asyncio.create_task(readers.get(path)) for _ in range(ANSWERS_AT_ONCE + 1)]
    await until(lambda: len(readers.answered) >= ANSWERS_AT_ONCE, "the first answers")
    for _ in range(3):
        status = await fixture.status("POST " + EXECS, **fixture.cookie("owner"))
        assert status == 409, "what has no long answer goes on"
    assert len(readers.answered) == ANSWERS_AT_ONCE
    readers.read.set()
    await asyncio.gather(*calls)
    assert readers.answered == [200] * (ANSWERS_AT_ONCE + 1)
