"""The access part as one ASGI application."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import structlog
from fastapi import APIRouter, Depends, FastAPI
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.types import Scope

from codehub.access import archives, exec_streams, execs, files, logs, ports, terminals
from codehub.access.archive_store import ReadableArchives
from codehub.access.byte_stream import NOT_RENDERED
from codehub.access.exec_refresher import ExecRefresher
from codehub.access.open_readers import OpenReaders
from codehub.access.runtime import make_commands, make_files, make_ports
from codehub.access.services import AccessServices
from codehub.access.workspace_watchers import WorkspaceWatchers
from codehub.asgi import errors
from codehub.asgi.body_limit import BodyLimitMiddleware
from codehub.asgi.call_admission import CallAdmissionMiddleware
from codehub.asgi.credential_lookup import CredentialLookup
from codehub.asgi.credential_revocation import CredentialRevocations
from codehub.asgi.csrf import CsrfMiddleware
from codehub.asgi.head import HeadMiddleware
from codehub.asgi.internal_key import InternalKeyMiddleware
from codehub.asgi.known_query import check_query
from codehub.asgi.metrics import MetricsMiddleware, RequestMetrics
from codehub.asgi.security_headers import SECURITY, SecurityHeadersMiddleware
from codehub.concurrency_limits import ConcurrencyLimit
from codehub.database.engine import STATEMENT_SECONDS, create_engine
from codehub.domain.cookie_names import SESSION_COOKIE, cookie_name
from codehub.runtimes.command_runtime import CommandRuntime
from codehub.session_lookup_limit import SessionLookupLimit
from codehub.settings import Settings

logger = structlog.get_logger(__name__)

PREFIX: Final = "/api/v1"
POOL_SIZE: Final = 20
THREADS: Final = 32
CALLS_AT_ONCE: Final = 512
"""Per user, streams among them. A call beyond is rejected, and does not wait."""
ANSWERS_AT_ONCE: Final = 8
"""Per user, of those that are made as a whole. Others wait, before they are made."""
QUERIES_AT_ONCE: Final = 8
"""Per user. Two users with as many calls as they may have leave connections to others."""
STARTS_AT_ONCE: Final = 4
"""Commands of a user that start at a time. Each takes a thread, of THREADS for all users."""
AGENTS_PER_USER: Final = 24
AGENTS_PER_WORKSPACE: Final = 16
"""Calls about files under way. Each takes two processes of the workspace."""
AGENTS_WAITING: Final = 128
DOWNLOADS_AT_ONCE: Final = 8
"""Downloads of archives of a user. One beyond is rejected: the others may take hours."""
LOG_FOLLOWERS: Final = 16
"""Followed logs of a user. On Docker each asks the engine every few seconds while nothing comes, and takes an
inotify instance of root in version 20.10: the kernel allows 128."""
_TOO_MANY_DOWNLOADS: Final = (
    f"You have {DOWNLOADS_AT_ONCE} downloads of archives in progress. Wait until one of them finishes."
)
_TOO_MANY_FOLLOWERS: Final = (
    f"You follow the logs of workspaces {LOG_FOLLOWERS} times. Close some of these streams."
)
_STREAMED: Final = ("/stdin", "/files/content", "/files/tar")
ERROR_RESPONSES: Final = errors.error_responses(409, 410, 412, 416)


def create_app(settings: Settings) -> FastAPI:
    app = FastAPI(
        title="CodeHub",
        openapi_url=None,  # the API serves one document for both
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan(settings),
        redirect_slashes=False,
    )
    metrics = app.state.metrics = RequestMetrics("access")
    name = cookie_name(SESSION_COOKIE, secure=settings.base_url.startswith("https://"))
    errors.install(app)
    app.include_router(make_router())
    # Below the exception handlers, which turn a rejection into a response.
    app.router.middleware_stack = CallAdmissionMiddleware(
        BodyLimitMiddleware(app.router.middleware_stack, is_streamed=_is_streamed),
        prefix=PREFIX,
        cookie_name=name,
        lookup=_credential_lookup,
        calls_per_user=ConcurrencyLimit(
            CALLS_AT_ONCE,
            0,
            "You have too many calls in progress. Wait until some of them finish.",
            metrics.limited.labels("calls").inc,
        ),
    )
    app.add_middleware(HeadMiddleware)
    app.add_middleware(
        CsrfMiddleware, own_origin=settings.base_url, cookie_name=name, login_path="", checks_reads=True
    )
    key = settings.internal_key_for("ACCESS_LISTEN", settings.access_listen_address)
    if key is not None:
        app.add_middleware(InternalKeyMiddleware, key=key)
    app.add_middleware(SecurityHeadersMiddleware, headers=SECURITY | NOT_RENDERED)
    app.add_middleware(MetricsMiddleware, metrics=metrics)
    return app


def _is_streamed(path: str) -> bool:
    """Return whether a call's body is as long as what a command or a file takes."""
    return path.endswith(_STREAMED)


def make_router() -> APIRouter:
    router = APIRouter(prefix=PREFIX, responses=ERROR_RESPONSES, dependencies=[Depends(check_query)])
    for resource in (execs, exec_streams, terminals, logs, files, archives, ports):
        router.include_router(resource.router)
    return router


def _credential_lookup(scope: Scope) -> CredentialLookup:
    services: AccessServices = scope["app"].state.services
    return services.credential_lookup


def _lifespan(settings: Settings) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # Each reader of output reads from a disk. The default pool has a few threads only.
        pool = ThreadPoolExecutor(THREADS, thread_name_prefix="access")
        asyncio.get_running_loop().set_default_executor(pool)
        engine = create_engine(
            settings.database_url, pool_size=POOL_SIZE, statement_seconds=STATEMENT_SECONDS
        )
        commands = await make_commands(settings, engine)
        services = app.state.services = _make_services(app, settings, engine, commands)
        refresher = ExecRefresher(engine, services.commands, settings.backends.instance)
        tasks = [
            asyncio.create_task(work)
            for work in (
                services.credential_revocations.run(),
                services.workspace_watchers.run(),
                refresher.run(),
            )
        ]
        for task in tasks:
            task.add_done_callback(_log_failure)
        try:
            yield
        finally:
            services.readers.end_all()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await engine.dispose()

    return lifespan


def _make_services(
    app: FastAPI, settings: Settings, engine: AsyncEngine, commands: CommandRuntime
) -> AccessServices:
    limited = app.state.metrics.limited
    message = "You have too many calls in progress. Wait until some of them finish."
    return AccessServices(
        settings,
        engine,
        commands,
        CredentialLookup(
            engine,
            SessionLookupLimit(limited.labels("session_lookups").inc),
            ConcurrencyLimit(QUERIES_AT_ONCE, CALLS_AT_ONCE, message, limited.labels("calls").inc),
        ),
        CredentialRevocations(settings.database_url, engine),
        OpenReaders(limited.labels("readers").inc),
        ConcurrencyLimit(QUERIES_AT_ONCE, CALLS_AT_ONCE, message, limited.labels("calls").inc),
        ConcurrencyLimit(ANSWERS_AT_ONCE, CALLS_AT_ONCE, message, limited.labels("calls").inc),
        ConcurrencyLimit(STARTS_AT_ONCE, CALLS_AT_ONCE, message, limited.labels("calls").inc),
        make_files(commands),
        make_ports(commands),
        WorkspaceWatchers(settings.database_url, engine),
        ConcurrencyLimit(AGENTS_PER_USER, AGENTS_WAITING, message, limited.labels("files").inc),
        ConcurrencyLimit(AGENTS_PER_WORKSPACE, AGENTS_WAITING, message, limited.labels("files").inc),
        ReadableArchives(settings.archive_store_url, engine),
        ConcurrencyLimit(DOWNLOADS_AT_ONCE, 0, _TOO_MANY_DOWNLOADS, limited.labels("downloads").inc),
        ConcurrencyLimit(LOG_FOLLOWERS, 0, _TOO_MANY_FOLLOWERS, limited.labels("logs").inc),
    )


def _log_failure(task: "asyncio.Task[None]") -> None:
    """Log a task that failed: these run as long as the process."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.critical("a background task of the access part failed; restart it", exc_info=error)
