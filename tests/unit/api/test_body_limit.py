"""Limits on the duration of request bodies."""

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from codehub.api import body_limit
from tests.waiting import PATIENCE


async def test_a_slow_body_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_limit, "MAX_SECONDS", 0.1)
    statuses: list[int] = []

    async def drip() -> Message:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def never(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise AssertionError("the call was made without its body")

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {"type": "http", "method": "POST", "headers": []}
    await asyncio.wait_for(body_limit.BodyLimitMiddleware(never)(scope, drip, send), PATIENCE)
    assert statuses == [408]
