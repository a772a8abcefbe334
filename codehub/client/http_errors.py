"""Exceptions of httpx as those of the SDK."""

import contextlib
from collections.abc import Iterator
from typing import Final

import httpx

from codehub.client.errors import ConnectionFailed, Silence, TimedOut, UnexpectedAnswer
from codehub.client.requests import CONNECT_SECONDS, Server

USER_AGENT: Final = "codehub-client"
_NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)


def timeouts(seconds: float) -> httpx.Timeout:
    return httpx.Timeout(seconds, connect=CONNECT_SECONDS)


@contextlib.contextmanager
def mapped_errors(server: Server, *, in_stream: bool = False) -> Iterator[None]:
    """Raise the SDK's exceptions for those of httpx. `in_stream`: the answer has begun."""
    try:
        yield
    except _NOT_SENT as error:
        raise ConnectionFailed(f"{server.url} cannot be reached: {_text(error)}.") from error
    except httpx.ReadTimeout as error:
        kind = Silence if in_stream else TimedOut
        raise kind(f"{server.url} did not answer in time.", may_have_happened=True) from error
    except httpx.TimeoutException as error:
        raise TimedOut(f"{server.url} took no data in time.", may_have_happened=True) from error
    except httpx.TransportError as error:
        message = f"The connection to {server.url} broke: {_text(error)}."
        raise ConnectionFailed(message, may_have_happened=True) from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UnexpectedAnswer(f"The answer of {server.url} cannot be read: {_text(error)}.") from error


def _text(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__
