"""Every error of the SDK tells an agent what to do."""

import inspect

import pytest

from codehub.client import errors
from codehub.mcp.advice import explain

API_ERRORS = [
    kind for kind in vars(errors).values()
    if inspect.isclass(kind) and issubclass(kind, errors.ApiError) and kind is not errors.ApiError
]  # fmt: skip


@pytest.mark.parametrize("kind", API_ERRORS)
def test_an_error_of_the_server_has_its_code_its_message_and_advice(kind: type[errors.ApiError]) -> None:
    text = explain(kind(499, "SOME_CODE", "It happened."))
    assert text.startswith("SOME_CODE: It happened. ")
    assert len(text) > len("SOME_CODE: It happened. ")


def test_a_limit_says_how_long_to_wait() -> None:
    assert "Wait 7 s" in explain(errors.TooManyRequests(429, "TOO_MANY_REQUESTS", "Too many.", 7.0))


def test_a_lost_connection_says_whether_it_may_have_been_done() -> None:
    lost = explain(errors.ConnectionFailed("It broke.", may_have_happened=True))
    assert lost.startswith("CONNECTION_FAILED: It broke. ") and "may have been done" in lost
    assert "Nothing was done" in explain(errors.ConnectionFailed("No route."))
    assert explain(errors.TimedOut("Too slow.", may_have_happened=True)).startswith("TIMED_OUT: ")
