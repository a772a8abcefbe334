"""The SDK's two clients behind one: tests are written once, for the one that blocks."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from codehub.client import AsyncClient, Client

KINDS = ("sync", "async")


class Blocking:
    """Proxy of an object of the asynchronous SDK, used as the object of the other one."""

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._target = target
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not callable(found):
            return self._wrapped(found)
        return lambda *arguments, **options: self._result(found, *arguments, **options)

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(aiter(self._target))

    def __enter__(self) -> "Blocking":
        self._loop.run_until_complete(self._target.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self._target.__aexit__(None, None, None))

    def _result(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        result = call(*arguments, **options)
        if inspect.iscoroutine(result):
            result = self._loop.run_until_complete(result)
        return self._wrapped(result)

    def _wrapped(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._wrapped(each) for each in value]
        if isinstance(value, AsyncIterator):
            return self._iterate(value)
        is_of_sdk = type(value).__module__.startswith("codehub.client.aio")
        return Blocking(value, self._loop) if is_of_sdk else value

    def _iterate(self, values: AsyncIterator[Any]) -> Iterator[Any]:
        end = object()
        try:
            while (value := self._loop.run_until_complete(anext(values, end))) is not end:
                yield value
        finally:
            if hasattr(values, "aclose"):
                self._loop.run_until_complete(values.aclose())


def make_client(kind: str, loop: asyncio.AbstractEventLoop, *arguments: Any, **options: Any) -> Any:
    """Return a client of this kind. Both have the same methods."""
    if kind == "sync":
        return Client(*arguments, **options)
    return Blocking(AsyncClient(*arguments, **options), loop)


def sign_in(kind: str, loop: asyncio.AbstractEventLoop, url: str, username: str, password: str) -> Any:
    if kind == "sync":
        return Client.sign_in(url, username, password)
    return Blocking(loop.run_until_complete(AsyncClient.sign_in(url, username, password)), loop)
