"""HEAD, answered as GET without the body."""

import asyncio
from typing import Any

from codehub.asgi.head import HeadMiddleware

START = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"7")]}


class Stream:
    """An application whose answer has no end."""

    def __init__(self) -> None:
        self.scope: dict[str, Any] = {}
        self.is_cancelled = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope = scope
        try:
            await send(START)
            while True:
                await send({"type": "http.response.body", "body": b"content", "more_body": True})
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise


async def call(app: Any, method: str) -> list[Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    await HeadMiddleware(app)(
        {"type": "http", "method": method, "path": "/", "headers": [(b"range", b"bytes=0-1"), (b"a", b"b")]},
        receive,
        send,
    )
    return sent


async def test_the_head_of_a_stream_ends_it() -> None:
    stream = Stream()
    assert await call(stream, "HEAD") == [START, {"type": "http.response.body", "body": b""}]
    assert stream.is_cancelled and stream.scope["method"] == "GET"
    assert stream.scope["headers"] == [(b"a", b"b")], "Range is for GET only"


async def test_an_error_of_the_application_is_raised() -> None:
    async def fail(_scope: Any, _receive: Any, _send: Any) -> None:
        raise ValueError("no answer")

    try:
        await call(fail, "HEAD")
    except ValueError as error:
        assert str(error) == "no answer"
    else:
        raise AssertionError("the error was swallowed")


async def test_other_methods_are_as_they_were() -> None:
    async def answer(scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["method"].encode()})

    assert (await call(answer, "POST"))[1]["body"] == b"POST"
