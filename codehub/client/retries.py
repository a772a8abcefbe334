"""Decisions about trying again: whether, and after how long."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from codehub.client.errors import ApiError, CodehubError, ConnectionFailed, UnexpectedAnswer
from codehub.client.requests import Request

FIRST_DELAY: Final = 0.1
LONGEST_DELAY: Final = 5.0
RETRY_SECONDS: Final = 30.0
"""How long a call is tried again."""
RECONNECT_SECONDS: Final = 120.0
"""How long a stream is tried again without a byte of progress."""
_PASSING: Final = (502, 503, 504)
_NO_RETRY: Final = ("WAKE_TIMEOUT",)
"""Codes of answers that took their time already."""


@dataclass
class Backoff:
    """Growing delays within a time limit, which progress starts again."""

    seconds: float
    clock: Callable[[], float]
    _tries: int = 0
    _since: float = field(init=False)

    def __post_init__(self) -> None:
        self._since = self.clock()

    def restart(self) -> None:
        """Record progress."""
        self._tries = 0
        self._since = self.clock()

    def delay(self, problem: CodehubError) -> float:
        """Return the seconds until the next attempt; raise the problem if the time is over."""
        asked = problem.retry_after or 0.0 if isinstance(problem, ApiError) else 0.0
        longest = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(self._tries, 16))
        delay = max(asked, random.uniform(0.5, 1.0) * longest)  # noqa: S311 - spreads clients
        self._tries += 1
        if self.clock() - self._since + delay > self.seconds:
            raise problem
        return delay


def is_passing(problem: CodehubError) -> bool:
    """Return whether the same request may succeed a little later."""
    if isinstance(problem, ConnectionFailed):
        return True
    if isinstance(problem, UnexpectedAnswer):
        return problem.status in _PASSING
    if not isinstance(problem, ApiError) or problem.code in _NO_RETRY:
        return False
    return problem.status in _PASSING or problem.code == "TOO_MANY_REQUESTS"


def may_repeat(request: Request, problem: CodehubError) -> bool:
    """Return whether a request may be sent again after this problem.

    One that changes something is repeated only if the server has not acted on it for certain.
    """
    if not is_passing(problem):
        return False
    if request.is_repeatable:
        return True
    if isinstance(problem, ConnectionFailed):
        return not problem.may_have_happened
    return isinstance(problem, ApiError) and problem.code == "TOO_MANY_REQUESTS"
