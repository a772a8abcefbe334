"""Prometheus metrics of a part that serves HTTP. No label names a user or a workspace."""

import time
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

UNROUTED: Final = "other"
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PATCH", "PUT", "DELETE", "OPTIONS"})


class RequestMetrics:
    """Requests of one part, such as `codehub_api_requests`."""

    def __init__(self, part: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.requests = Counter(
            f"codehub_{part}_requests",
            "Answered requests.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            f"codehub_{part}_request_seconds", "Time to the first byte.", ["route"], registry=self.registry
        )
        self.limited = Counter(
            f"codehub_{part}_limited",
            "Calls and streams that a limit rejected or ended.",
            ["limit"],
            registry=self.registry,
        )

    def exposition(self) -> tuple[bytes, str]:
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


def route_of(scope: Scope) -> str:
    """Return the path template of the route, or UNROUTED for a path without one."""
    if "endpoint" not in scope:
        return UNROUTED
    route: str = scope["path"]
    for name, value in scope.get("path_params", {}).items():
        route = route.replace(f"/{value}", f"/{{{name}}}", 1)
    return route


class MetricsMiddleware:
    """Middleware that counts requests by route template, so that ids in paths make no new series."""

    def __init__(self, app: ASGIApp, *, metrics: RequestMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = route_of(scope)
                method = scope["method"] if scope["method"] in _METHODS else UNROUTED
                self._metrics.requests.labels(method, route, message["status"]).inc()
                self._metrics.seconds.labels(route).observe(time.perf_counter() - started)
            await send(message)

        await self._app(scope, receive, counted)
