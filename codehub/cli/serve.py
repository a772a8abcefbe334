"""`codehub serve ...`: one part, against servers of one's own."""

import asyncio
import importlib
import resource
import signal

import typer
import uvloop

from codehub import log
from codehub.cli import certificates, needs
from codehub.cli.errors import CommandError, told
from codehub.cli.options import load_settings
from codehub.cli.workers import run_workers
from codehub.domain.images import known_images
from codehub.domain.limits import Limits
from codehub.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Run one part against a PostgreSQL, Redis and archive store.")


@app.command()
def api() -> None:
    """The HTTP API and the dashboard, on a Unix socket that the gateway forwards to."""
    with told():
        settings = _settings("api")
        asyncio.run(needs.require(settings))
        allow_many_connections()
        from codehub.api.server import run

        run(settings)


@app.command()
def gateway() -> None:
    """The front door: the only public port."""
    with told():
        settings = _settings("gateway")
        certificates.require_certificate(settings)
        asyncio.run(needs.require(settings))
        allow_many_connections()
        importlib.import_module("codehub.gateway.server")  # once, before the workers fork
        run_workers(settings.gateway_workers, lambda: uvloop.run(_serve_gateway(settings)))


@app.command()
def coordinator() -> None:
    """What turns wishes into reality; several may run, one of them leads."""
    with told():
        settings = _settings("coordinator")
        asyncio.run(needs.require(settings))
        uvloop.run(_serve_coordinator(settings))


def allow_many_connections() -> None:
    """A socket costs two descriptors here, and the usual soft limit (1024) would be a small crowd's."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _settings(component: str) -> Settings:
    settings = load_settings()
    if missing := [name for name in ("DATABASE_URL", "REDIS_URL") if not getattr(settings, name.lower())]:
        raise CommandError(f"{' and '.join(missing)} must be set (`codehub up` brings its own)")
    log.configure(component, settings.log_level)
    return settings


async def _serve_coordinator(settings: Settings) -> None:
    from codehub.coordinator.main import run

    for sentence in await needs.missing_images(settings):
        log.get("coordinator").warning(sentence)
    await run(settings, _stop_event())


async def _serve_gateway(settings: Settings) -> None:
    from codehub.gateway.config import GatewayConfig
    from codehub.gateway.server import serve

    config = GatewayConfig(
        host=settings.host,
        port=settings.port,
        public_base_url=settings.base_url,
        apps_domain=settings.apps_host,
        api_upstream=f"unix:{settings.api_socket}",
        database_url=settings.database_url,
        redis_url=settings.redis_url,
        limits=Limits(settings.limits_max_running_per_user, settings.limits_max_running_global),
        activity={image.name: image.activity for image in known_images(settings.images_text)},
        activity_flush_interval=settings.activity_flush_interval,
        tls=certificates.files(settings),
        trusted_proxies=settings.proxies,
        max_connections=max(16, settings.gateway_max_connections // settings.gateway_workers),
    )
    await serve(
        config, stop=_stop_event(), ready=lambda: log.get("gateway").info("ready", port=settings.port)
    )


def _stop_event() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


if __name__ == "__main__":  # how `codehub up` starts a part: without loading every other command
    app()
