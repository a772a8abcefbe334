"""Limits on the duration of request bodies, and on those of clients without a session."""

import asyncio
import json

import pytest
from starlette.types import Message, Receive, Scope, Send

from codehub.asgi import body_limit
from codehub.asgi.body_limit import BodyLimitMiddleware
from tests.waiting import PATIENCE, until

LOGIN = "/api/v1/login"


class Calls:
    """The application below the middleware, which records the bodies that it gets."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.limit = BodyLimitMiddleware(self._app, login_path=LOGIN)

    async def _app(self, _scope: Scope, receive: Receive, _send: Send) -> None:
        self.bodies.append((await receive())["body"])

    async def post(self, receive: Receive, path: str = LOGIN, length: int | None = None) -> int:
        """Make a call without a session, and return its status: 0 if it reached the application."""
        statuses: list[int] = []

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        headers = [] if length is None else [(b"content-length", b"%d" % length)]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
        await asyncio.wait_for(self.limit(scope, receive, send), PATIENCE)
        return statuses[0] if statuses else 0


class UnfinishedBody:
    """Body that ends only when the test says so."""

    def __init__(self) -> None:
        self.is_being_read = False
        self._end = asyncio.Event()

    async def receive(self) -> Message:
        if not self.is_being_read:
            self.is_being_read = True
            return {"type": "http.request", "body": b"x" * 1000, "more_body": True}
        await self._end.wait()
        return {"type": "http.request", "body": b"", "more_body": False}

    def end(self) -> None:
        self._end.set()


async def test_a_slow_body_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_limit, "MAX_SECONDS", 0.1)

    async def drip() -> Message:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b"x", "more_body": True}

    calls = Calls()
    assert await calls.post(drip) == 408
    assert not calls.bodies


async def test_only_the_body_of_a_sign_in_is_read_without_a_session() -> None:
    async def never() -> Message:
        raise AssertionError("the body was read")

    calls = Calls()
    assert await calls.post(never, "/api/v1/workspaces", length=1 << 30) == 0
    assert calls.bodies == [b""]


@pytest.mark.parametrize("length", [None, body_limit.MAX_SIGN_IN + 1])
async def test_a_sign_in_is_small(length: int | None) -> None:
    async def large() -> Message:
        return {"type": "http.request", "body": b"x" * (body_limit.MAX_SIGN_IN + 1), "more_body": True}

    calls = Calls()
    assert await calls.post(large, length=length) == 413
    assert not calls.bodies


def test_the_longest_name_and_password_fit_into_a_sign_in() -> None:
    escaped = {"username": "\N{GRINNING FACE}" * 200, "password": "\N{GRINNING FACE}" * 1024}
    assert len(json.dumps(escaped)) < body_limit.MAX_SIGN_IN


async def test_beyond_the_bound_the_oldest_unfinished_sign_in_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_limit, "MAX_UNFINISHED_SIGN_INS", 3)
    calls, bodies = Calls(), [UnfinishedBody() for _ in range(10)]
    posts = []
    for body in bodies:
        posts.append(asyncio.create_task(calls.post(body.receive)))
        await until(lambda body=body: body.is_being_read, "the sign-in to be read")
    assert [await post for post in posts[:7]] == [408] * 7
    assert len(calls.limit._unfinished) == 3

    async def whole() -> Message:
        return {"type": "http.request", "body": b"a real sign-in", "more_body": False}

    assert await calls.post(whole) == 0
    assert calls.bodies == [b"a real sign-in"]
    for body in bodies:
        body.end()
    assert [await post for post in posts[7:]] == [408, 0, 0]
    assert not calls.limit._unfinished
