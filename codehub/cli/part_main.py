"""What each part of CodeHub runs: the API, the gateway, the coordinator.

A part loads its modules when it starts, so that one that runs alone does not carry the others'.
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

from codehub import internal_http, readiness
from codehub.cli import certificates, database_setup, part_users, requirements
from codehub.cli.errors import CommandError, report_errors
from codehub.cli.heartbeats import Heartbeats
from codehub.cli.options import load_settings
from codehub.cli.part_users import PartUser
from codehub.cli.start_audit import record_start
from codehub.cli.workers import CHECK_SECONDS, run_in_child, run_workers
from codehub.domain.limits import Limits
from codehub.images_file import known_images
from codehub.settings import Settings, SettingsError

logger = structlog.get_logger(__name__)

if TYPE_CHECKING:
    from codehub.gateway.metrics import GatewayMetrics


def api(user: PartUser | None = None) -> None:
    """Serve the API; under root as `user`, if there is one."""
    with report_errors():
        settings = _settings("api")
        settings.internal_key_for("API_LISTEN", settings.api_listen_address)
        if user is None:
            _require(settings, "api")
        raise_open_file_limit()
        from codehub.api.server import run

        run(settings, before_serving=lambda: _leave_root(settings, "api", user))


def gateway(user: PartUser | None = None) -> None:
    """Serve the public port; under root as `user`, if there is one."""
    with report_errors():
        settings = _settings("gateway")
        settings.internal_key_for("API_UPSTREAM", settings.api_upstream_address)
        if user is None:
            _require(settings, "gateway")
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
    with report_errors():
        settings = _settings("coordinator")
        _require(settings, "coordinator")
        uvloop.run(_serve_coordinator(settings))


PARTS: Mapping[str, Callable[..., None]] = {"coordinator": coordinator, "api": api, "gateway": gateway}
"""In the order in which `codehub up` starts them."""
PROGRAMS: Mapping[str, Callable[..., None]] = {**PARTS, "first-start": database_setup.main}
"""What the fork server can run."""
_MODULES = ("codehub.coordinator.main", "codehub.api.server", "codehub.gateway.server")
_DOCKER = "codehub.runtimes.docker.runtime"


def load_all(*, docker: bool) -> Mapping[str, Callable[..., None]]:
    """Load the modules of every part, for a process that forks them; return what to call in each fork."""
    for module in (*_MODULES, _DOCKER) if docker else _MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a later collection would otherwise write to every shared page, and so copy it
    return PROGRAMS


def prepare() -> None:
    """Read the settings and set up the log, for the parts that are forked from this process.

    What is wrong with the settings, the part says itself. Parts write their logs to files.
    """
    with contextlib.suppress(SettingsError):
        settings = _read_settings(frozenset(os.environ.items()))
        log.configure("", settings.log_level, terminal=False, audit=sys.stdout)


@lru_cache(maxsize=1)
def _read_settings(environment: frozenset[tuple[str, str]]) -> Settings:
    """Read the settings once for each environment."""
    return load_settings()


def _require(settings: Settings, part: str) -> None:
    """Check what the part needs, in a process of its own: a check touches memory that the part never uses.

    The API also logs how to make the first admin if there is none: without one, no one can sign in.
    """

    def check() -> None:
        with report_errors():
            if part == "gateway":
                certificates.require_certificate(settings)
            asyncio.run(requirements.require_all(settings))
            asyncio.run(record_start(settings, part))
            if part == "api" and asyncio.run(requirements.admin_is_missing(settings)):
                logger.warning(requirements.NO_ADMIN)

    if code := run_in_child(check):
        raise typer.Exit(code)


def _leave_root(settings: Settings, part: str, user: PartUser | None) -> None:
    """Become the part's user, if there is one, and check as that user what the part needs."""
    if user is None:
        return
    requirements.offered_images(settings)  # reads the file that others need not read
    part_users.become(user)
    try:
        _require(settings, part)
    except typer.Exit:
        hint = f"give it access, or set {part.upper()}_UID=0 to run the {part} as root"
        typer.echo(f"codehub: the {part} runs as user id {user.uid}: {hint}", err=True)
        raise


def raise_open_file_limit() -> None:
    """Raise the soft limit of open files: a connection takes two descriptors, and the usual limit is 1024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _settings(component: str) -> Settings:
    settings = _read_settings(frozenset(os.environ.items()))
    if missing := [name for name in ("DATABASE_URL", "REDIS_URL") if not getattr(settings, name.lower())]:
        raise CommandError(f"{' and '.join(missing)} must be set (`codehub up` brings its own)")
    log.configure(component, settings.log_level, audit=sys.stdout)
    if settings.insecure_http and component != "coordinator":
        logger.warning(settings.insecure_http_message)
    if settings.wide_proxies and component == "gateway":
        logger.warning(settings.wide_proxies_message)
    return settings


async def _serve_coordinator(settings: Settings) -> None:
    from codehub.coordinator.main import run

    for sentence in (
        *await requirements.missing_image_warnings(settings),
        *await requirements.other_runtime_warnings(settings),
    ):
        logger.warning(sentence)
    await run(settings, _stop_event())


def _max_silent_checks(settings: Settings) -> float:
    """Return for how many looks a worker may be silent: half of what its part may, which they share."""
    if not settings.part_timeout_seconds:
        return math.inf
    return max(2, settings.part_timeout_seconds / 2 / CHECK_SECONDS)


async def _serve_gateway(
    settings: Settings, number: int, metrics: "GatewayMetrics", listener: socket.socket
) -> None:
    """Run one worker. Any of them answers on the internal listener, for all of them."""
    from codehub.gateway.config import GatewayConfig
    from codehub.gateway.server import serve
    from codehub.gateway.trusted_proxies import TrustedProxies

    config = GatewayConfig(
        host=settings.host,
        port=settings.port,
        public_base_url=settings.base_url,
        apps_domain=settings.apps_host,
        api_upstream=settings.api_upstream_address,
        internal_key=settings.internal_key_for("API_UPSTREAM", settings.api_upstream_address),
        database_url=settings.database_url,
        redis_url=settings.redis_url,
        limits=Limits(settings.limits_max_running_per_user, settings.limits_max_running_global),
        activity={image.name: image.activity for image in known_images(settings.images_text)},
        activity_flush_interval=settings.activity_flush_interval,
        tls=certificates.files(settings),
        trusted_proxies=TrustedProxies(settings.proxies),
        max_connections=max(16, settings.gateway_max_connections // settings.gateway_workers),
        max_connections_per_address=-(
            -settings.gateway_max_connections_per_address // settings.gateway_workers
        ),
    )
    handlers = readiness.handlers(settings.database_url, settings.redis_url, metrics.exposition)
    async with internal_http.serve(listener, handlers):
        await serve(
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
