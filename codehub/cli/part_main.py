"""Entry points of the parts: the API, the access part, the gateway and the coordinator.

A part imports its modules when it starts, so that it does not load those of other parts.
"""

from codehub import log  # first: it keeps structlog from loading Rich

# isort: split
import asyncio
import contextlib
import gc
import importlib
import math
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import structlog
import typer
import uvloop

from codehub import health_endpoints, internal_http
from codehub.cli import certificate_checks, database_setup, part_users, requirements
from codehub.cli.errors import CommandError, report_errors
from codehub.cli.heartbeats import Heartbeats
from codehub.cli.options import load_settings
from codehub.cli.part_users import PartUser
from codehub.cli.start_audit import record_start
from codehub.cli.workers import CHECK_SECONDS, run_in_child, run_workers
from codehub.domain.user_limits import Limits
from codehub.images_file import known_images
from codehub.settings import Settings, SettingsError

logger = structlog.get_logger(__name__)

if TYPE_CHECKING:
    from codehub.gateway.metrics import GatewayMetrics


def api(user: PartUser | None = None) -> None:
    """Serve the API. If this process is root, serve as `user`, if given."""
    with report_errors():
        settings = _settings("api")
        settings.internal_key_for("API_LISTEN", settings.api_listen_address)
        if user is None:
            _check_requirements(settings, "api")
        raise_open_file_limit()
        from codehub import openapi_document
        from codehub.api.server import run

        run(
            settings,
            before_serving=lambda: _leave_root(settings, "api", user),
            describe=openapi_document.describe,
        )


def access(user: PartUser | None = None) -> None:
    """Serve what reaches into workspaces. If this process is root, serve as `user`, if given."""
    with report_errors():
        settings = _settings("access")
        environment = part_users.reader_environment(os.environ)
        os.environ.clear()
        os.environ.update(environment)
        settings.internal_key_for("ACCESS_LISTEN", settings.access_listen_address)
        if user is None:
            _check_requirements(settings, "access")
        raise_open_file_limit()
        from codehub.access.server import run

        run(settings, before_serving=lambda: _leave_root(settings, "access", user))


def gateway(user: PartUser | None = None) -> None:
    """Serve the public port. If this process is root, serve as `user`, if given."""
    with report_errors():
        settings = _settings("gateway")
        settings.internal_key_for("API_UPSTREAM", settings.api_upstream_address)
        settings.internal_key_for("ACCESS_UPSTREAM", settings.access_upstream_address)
        if user is None:
            _check_requirements(settings, "gateway")
        raise_open_file_limit()
        importlib.import_module("codehub.gateway.server")  # once, before the workers fork
        listener = internal_http.listen(settings.internal_addresses("gateway"))
        try:
            _leave_root(settings, "gateway", user)
            _run_gateway(settings, listener)
        finally:
            internal_http.close_and_remove(listener)


def _run_gateway(settings: Settings, listener: socket.socket) -> None:
    from codehub.gateway.metrics import GatewayMetrics

    metrics = GatewayMetrics(settings.gateway_workers)
    heartbeats = Heartbeats(settings.gateway_workers, _max_silent_checks(settings))

    async def work(number: int) -> None:
        async with heartbeats.beating(number):
            await _serve_gateway(settings, number, metrics, listener)

    run_workers(settings.gateway_workers, lambda number: uvloop.run(work(number)), heartbeats)


def coordinator() -> None:
    """Run the coordinator."""
    with report_errors():
        settings = _settings("coordinator")
        _check_requirements(settings, "coordinator")
        uvloop.run(_serve_coordinator(settings))


PARTS: Mapping[str, Callable[..., None]] = {
    "coordinator": coordinator,
    "api": api,
    "access": access,
    "gateway": gateway,
}
"""In the order in which `codehub up` starts them."""
PROGRAMS: Mapping[str, Callable[..., None]] = {**PARTS, "first-start": database_setup.main}
"""What the fork server can run."""
_MODULES = (
    "codehub.coordinator.main",
    "codehub.api.server",
    "codehub.access.server",
    "codehub.gateway.server",
)
_DOCKER = "codehub.runtimes.docker.runtime"


def load_all(*, docker: bool) -> Mapping[str, Callable[..., None]]:
    """Load the modules of every part; return the functions that forks of this process may call."""
    for module in (*_MODULES, _DOCKER) if docker else _MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # otherwise a later collection writes to every shared page, which copies it
    return PROGRAMS


def prepare() -> None:
    """Read the settings and set up the log, for the parts that are forked from this process.

    The part itself reports invalid settings. Parts write their logs to files.
    """
    with contextlib.suppress(SettingsError):
        settings = _read_settings(frozenset(os.environ.items()))
        log.configure("", settings.log_level, terminal=False, audit=sys.stdout)


@lru_cache(maxsize=1)
def _read_settings(environment: frozenset[tuple[str, str]]) -> Settings:
    """Read the settings once for each environment."""
    return load_settings()


def _check_requirements(settings: Settings, part: str) -> None:
    """Check what the part needs, in a child process.

    The checks use memory that the part never needs. The API also logs how to create the first admin
    if there is none: without one, no one can sign in.
    """

    def check() -> None:
        with report_errors():
            if part == "gateway":
                certificate_checks.require_certificate(settings)
            asyncio.run(requirements.require_all(settings))
            asyncio.run(record_start(settings, part, is_root=os.geteuid() == 0))
            if part == "api" and asyncio.run(requirements.admin_is_missing(settings)):
                logger.warning(requirements.NO_ADMIN)

    if code := run_in_child(check):
        raise typer.Exit(code)


def _leave_root(settings: Settings, part: str, user: PartUser | None) -> None:
    """Become the part's user, if given, and check the part's requirements as that user."""
    if user is None:
        return
    requirements.offered_images(settings)  # reads a file that the user may be unable to read
    part_users.drop_to_user(user)
    try:
        _check_requirements(settings, part)
    except typer.Exit:
        hint = f"give it access, or set {part.upper()}_UID=0 to run the {part} as root"
        typer.echo(f"codehub: the {part} runs as user id {user.uid}: {hint}", err=True)
        raise


def raise_open_file_limit() -> None:
    """Raise the soft limit of open files.

    A connection takes two descriptors, and the usual limit is 1024.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _settings(component: str) -> Settings:
    settings = _read_settings(frozenset(os.environ.items()))
    if missing := [name for name in ("DATABASE_URL", "REDIS_URL") if not getattr(settings, name.lower())]:
        raise CommandError(f"{' and '.join(missing)} must be set (`codehub up` provides both)")
    log.configure(component, settings.log_level, audit=sys.stdout)
    if settings.insecure_http and component != "coordinator":
        logger.warning(settings.insecure_http_message)
    if settings.wide_proxies and component == "gateway":
        logger.warning(settings.wide_proxies_message)
    return settings


async def _serve_coordinator(settings: Settings) -> None:
    from codehub.coordinator.main import run

    for warning in (
        *await requirements.missing_image_warnings(settings),
        *await requirements.other_runtime_warnings(settings),
    ):
        logger.warning(warning)
    await run(settings, _stop_event())


def _max_silent_checks(settings: Settings) -> float:
    """Return for how many checks a worker may be silent: half of the time that its part may be."""
    if not settings.part_timeout_seconds:
        return math.inf
    return max(2, settings.part_timeout_seconds / 2 / CHECK_SECONDS)


async def _serve_gateway(
    settings: Settings, number: int, metrics: "GatewayMetrics", listener: socket.socket
) -> None:
    """Run one worker. Every worker answers on the internal listener, for all of them."""
    from codehub.gateway.config import GatewayConfig
    from codehub.gateway.server import run_gateway_worker
    from codehub.gateway.trusted_proxies import TrustedProxies

    config = GatewayConfig(
        host=settings.host,
        port=settings.port,
        public_base_url=settings.base_url,
        apps_domain=settings.apps_host,
        api_upstream=settings.api_upstream_address,
        access_upstream=settings.access_upstream_address,
        internal_key=settings.internal_key_for("API_UPSTREAM", settings.api_upstream_address),
        access_key=settings.internal_key_for("ACCESS_UPSTREAM", settings.access_upstream_address),
        database_url=settings.database_url,
        redis_url=settings.redis_url,
        limits=Limits(settings.limits_max_running_per_user, settings.limits_max_running_global),
        activity={image.name: image.activity for image in known_images(settings.images_text)},
        activity_flush_interval=settings.activity_flush_interval,
        tls=certificate_checks.configured_certificate(settings),
        trusted_proxies=TrustedProxies(settings.proxies),
        max_connections=max(16, settings.gateway_max_connections // settings.gateway_workers),
        max_connections_per_address=-(
            -settings.gateway_max_connections_per_address // settings.gateway_workers
        ),
    )
    handlers = health_endpoints.handlers(settings.database_url, settings.redis_url, metrics.exposition)
    async with internal_http.serve_paths(listener, handlers):
        await run_gateway_worker(
            config,
            stop=_stop_event(),
            ready=lambda: logger.info("ready", port=settings.port),
            metrics=metrics.of_worker(number),
        )


def _stop_event() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
