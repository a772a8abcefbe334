"""Result of routing a request: relay it, reply to it, or look something up first."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any


class RouteResult:
    """Base of the three results of routing: Relay, Reply and PendingRoute."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class PendingRoute(RouteResult):
    """A coroutine that reads from PostgreSQL or Redis and then returns the result."""

    result: Coroutine[Any, Any, RouteResult]
