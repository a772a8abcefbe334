"""The API as one ASGI application."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache, partial
from typing import Any, Final

import structlog
from fastapi import APIRouter, Depends, FastAPI
from redis.asyncio import Redis
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from codehub.api import (
    admin,
    audit,
    events,
    health,
    images,
    leases,
    session,
    stats,
    tokens,
    users,
    workspace_actions,
    workspaces,
)
from codehub.api.dashboard_files import Dashboard
from codehub.api.metrics import ApiMetrics
from codehub.api.open_streams import OpenStreams
from codehub.api.services import Config, Services
from codehub.api.sign_in_limit import SignInLimit
from codehub.asgi import errors
from codehub.asgi.body_limit import BodyLimitMiddleware
from codehub.asgi.call_admission import CallAdmissionMiddleware
from codehub.asgi.credential_lookup import CredentialLookup
from codehub.asgi.credential_revocation import CredentialRevocations
from codehub.asgi.csrf import CsrfMiddleware
from codehub.asgi.internal_key import InternalKeyMiddleware
from codehub.asgi.known_query import check_query
from codehub.asgi.metrics import MetricsMiddleware
from codehub.asgi.security_headers import SecurityHeadersMiddleware
from codehub.bus.events import Subscriptions
from codehub.bus.known_networks import KnownNetworks
from codehub.concurrency_limits import ConcurrencyLimit
from codehub.database.engine import STATEMENT_SECONDS, create_engine
from codehub.domain.problems import NotFound
from codehub.session_lookup_limit import SessionLookupLimit
from codehub.settings import Settings

logger = structlog.get_logger(__name__)

PREFIX: Final = "/api/v1"
LOGIN: Final = f"{PREFIX}/login"
EVENTS: Final = f"{PREFIX}/events"
INTERNAL: Final = ("/readyz", "/metrics")
"""Served by the internal listener only. The dashboard must not answer a probe of these paths."""
POOL_SIZE: Final = 20
STREAM_READS: Final = 4
CALLS_AT_ONCE: Final = 8
"""Per user. Two users with as many calls as they may have leave connections to others."""
SEARCHES_AT_ONCE: Final = 1
MAX_WAITING: Final = 56

Describe = Callable[[FastAPI], dict[str, Any]]
"""Returns the OpenAPI document that an application serves."""


def create_app(settings: Settings, describe: Describe | None = None) -> FastAPI:
    """Return the application. `describe` adds the calls of other parts to the OpenAPI document."""
    config = Config(settings)
    _ = config.images  # report an invalid images file at start, not at the first call
    app = FastAPI(
        title="CodeHub",
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,  # the built-in pages load scripts from a CDN
        redoc_url=None,
        lifespan=_lifespan(config),
        redirect_slashes=False,
    )
    if describe is not None:
        app.openapi = cache(partial(describe, app))  # type: ignore[method-assign]
    app.state.metrics = ApiMetrics()
    app.state.calls_per_user = _concurrency_limit(app, CALLS_AT_ONCE, "calls")
    errors.install(app)
    app.include_router(_api())
    app.include_router(health.router)
    app.router.default = _fallback()
    # Below the exception handlers, which turn a rejection into a response.
    app.router.middleware_stack = CallAdmissionMiddleware(
        BodyLimitMiddleware(app.router.middleware_stack, login_path=LOGIN),
        prefix=PREFIX,
        cookie_name=config.cookie_name,
        lookup=lambda scope: scope["app"].state.services.credential_lookup,
        calls_per_user=app.state.calls_per_user,
        login_path=LOGIN,
        unbounded_paths=(EVENTS,),
    )
    app.add_middleware(
        CsrfMiddleware,
        own_origin=settings.base_url,
        cookie_name=config.cookie_name,
        login_path=LOGIN,
    )
    key = settings.internal_key_for("API_LISTEN", settings.api_listen_address)
    if key is not None:
        app.add_middleware(InternalKeyMiddleware, key=key)
    app.add_middleware(SecurityHeadersMiddleware)
    app.add_middleware(MetricsMiddleware, metrics=app.state.metrics)
    return app


def _api() -> APIRouter:
    api = APIRouter(prefix=PREFIX, responses=errors.error_responses(409), dependencies=[Depends(check_query)])
    for resource in (
        session,
        workspaces,
        workspace_actions,
        leases,
        stats,
        events,
        images,
        users,
        tokens,
        admin,
        audit,
    ):
        api.include_router(resource.router)
    return api


def _fallback() -> ASGIApp:
    """Serve paths without a route: 404 below /api, the dashboard elsewhere."""
    dashboard = Dashboard()

    async def fallback(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path == "/api" or path.startswith("/api/") or path in INTERNAL:
            raise NotFound
        if scope["method"] not in ("GET", "HEAD"):
            raise HTTPException(405, headers={"Allow": "GET, HEAD"})
        response = await dashboard.respond(path.lstrip("/"), scope)
        await response(scope, receive, send)

    return fallback


def _lifespan(config: Config) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        settings = config.settings
        engine = create_engine(
            settings.database_url, pool_size=POOL_SIZE, statement_seconds=STATEMENT_SECONDS
        )
        redis = Redis.from_url(settings.redis_url, socket_connect_timeout=3, socket_timeout=5)
        subscriptions = Subscriptions(redis, settings.redis_channel_sse_prefix)
        revocations = CredentialRevocations(settings.database_url, engine)
        known_networks = KnownNetworks(redis)
        app.state.services = Services(
            config,
            engine,
            redis,
            subscriptions,
            revocations,
            OpenStreams(),
            asyncio.Semaphore(STREAM_READS),
            CredentialLookup(
                engine,
                SessionLookupLimit(app.state.metrics.limited.labels("session_lookups").inc),
                _concurrency_limit(app, CALLS_AT_ONCE, "calls"),
            ),
            calls_per_user=app.state.calls_per_user,
            searches_per_user=_concurrency_limit(app, SEARCHES_AT_ONCE, "searches"),
            sign_in_limit=SignInLimit(
                known_networks, lambda limit: app.state.metrics.limited.labels(limit).inc()
            ),
        )
        listeners = [
            asyncio.create_task(listener.run()) for listener in (subscriptions, revocations, known_networks)
        ]
        for task in listeners:
            task.add_done_callback(_log_failure)
        try:
            yield
        finally:
            subscriptions.end_all()
            for task in listeners:
                task.cancel()
            await asyncio.gather(*listeners, return_exceptions=True)
            await redis.aclose()
            await engine.dispose()

    return lifespan


def _concurrency_limit(app: FastAPI, at_once: int, limit: str) -> ConcurrencyLimit:
    message = f"You have too many {limit} in progress. Wait until some of them finish."
    return ConcurrencyLimit(at_once, MAX_WAITING, message, app.state.metrics.limited.labels(limit).inc)


def _log_failure(task: "asyncio.Task[None]") -> None:
    """Log a listener that failed: listeners run as long as the process."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.critical("a background task of the API failed; restart the API", exc_info=error)
