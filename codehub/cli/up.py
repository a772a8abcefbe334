"""`codehub up`: run the whole system on one machine, with one data directory."""

import asyncio
import json
import os
import signal
import socket
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
import typer

from codehub import internal_http
from codehub.cli import (
    certificate_checks,
    certificate_copy,
    data_directory,
    data_lock,
    part_users,
    requirements,
    runtime_choice,
)
from codehub.cli.certificate_copy import CertificateCopy
from codehub.cli.errors import CommandError
from codehub.cli.part_main import PARTS
from codehub.cli.part_processes import Part, PartForkServer
from codehub.cli.part_users import PartUsers
from codehub.cli.supervisor import Supervisor, end_stale_processes
from codehub.cli.watchdog import watch
from codehub.embedded.emergency_reserve import EmergencyReserve
from codehub.embedded.postgres import EmbeddedPostgres
from codehub.embedded.private_paths import SOCKET_PATH_LIMIT
from codehub.embedded.redis import EmbeddedRedis
from codehub.embedded.server_account import EmbeddedError
from codehub.settings import Settings
from codehub.storage.errors import JobIsRunning
from codehub.storage.jobs.local_jobs import LocalJobs
from codehub.ulids import new_id

logger = structlog.get_logger(__name__)

READY_SECONDS = 120.0
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class _Prepared:
    """The final settings, and the lock of the data directory."""

    settings: Settings
    lock: data_lock.DataLock


def run(settings: Settings, *, auto: bool) -> None:
    """Start everything, print that it is ready, and stop everything on a signal.

    `auto` chooses a suitable runtime. The fork server is forked between two event loops, because it
    must have neither a loop nor threads. The parts share the memory of what the preparation loads.
    """
    prepared = asyncio.run(_prepare(settings, auto=auto))
    if prepared is None:
        return
    settings = prepared.settings
    try:
        users = part_users.choose_part_users(settings)
        if users.why_root:
            typer.secho(f"Warning: {users.warning}.", fg=typer.colors.YELLOW, err=True)
        gateway_uid = users.gateway.uid if users.gateway else os.geteuid()
        access_uid = users.access.uid if users.access else 0
        settings = settings.model_copy(update={"gateway_uid": gateway_uid, "access_uid": access_uid})
        forkserver = PartForkServer.fork(settings.data_dir / "logs", docker=settings.runtime == "docker")
        try:
            asyncio.run(_serve(settings, users, forkserver))
        finally:
            forkserver.stop()
    finally:
        prepared.lock.release()


async def _prepare(settings: Settings, *, auto: bool) -> _Prepared | None:
    """Check everything that can be checked before the start.

    Return None if a signal stops the start.
    """
    stop = _stop_event()
    _check_socket_path(settings.data_dir.expanduser().absolute())
    settings = settings.model_copy(update={"runtime": await runtime_choice.choose(settings, auto=auto)})
    await _check_settings(settings)
    if settings.insecure_http:
        typer.secho(f"Warning: {settings.insecure_http_message}.", fg=typer.colors.YELLOW, err=True)
    if settings.wide_proxies:
        typer.secho(f"Warning: {settings.wide_proxies_message}.", fg=typer.colors.YELLOW, err=True)
    if data_directory.is_new(settings.data_dir):
        # Before anything is created, so that a failed first start leaves nothing behind.
        check_port_free(settings.host, settings.port)
    data_dir = data_directory.prepare(settings.data_dir)
    settings = settings.model_copy(update={"data_dir": data_dir})
    lock = data_lock.acquire(data_dir)
    try:
        await _run_unless_stopped(runtime_choice.prepare(settings), stop)
        if not stop.is_set():
            end_stale_processes(data_dir / "run", [PartForkServer.name, *PARTS])
            check_port_free(settings.host, settings.port)
            await runtime_choice.stop_other_runtime(settings)
    except BaseException:
        lock.release()
        raise
    if stop.is_set():
        lock.release()
        return None
    return _Prepared(settings, lock)


async def _serve(settings: Settings, users: PartUsers, forkserver: PartForkServer) -> None:
    stop = _stop_event()
    supervisor = Supervisor(settings.data_dir / "run")
    try:
        system = _SystemStart(settings, users, supervisor, forkserver)
        await _run_unless_stopped(system.start(), stop)
        if not stop.is_set():
            supervisor.restart_dead_services()
            await stop.wait()
            message = "Stopping. Workspaces keep running; `codehub down --workspaces` stops them as well."
            typer.echo(message, err=True)
    finally:
        await supervisor.stop()
        certificate_copy.remove(settings.run_dir)
        if stop.is_set():
            await cancel_jobs(LocalJobs(settings.data_dir / "jobs"))


def _stop_event() -> asyncio.Event:
    stop = asyncio.Event()
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


class _SystemStart:
    """Start sequence of `codehub up`, from an empty machine to a ready system."""

    def __init__(
        self, settings: Settings, users: PartUsers, supervisor: Supervisor, forkserver: PartForkServer
    ) -> None:
        self._settings = settings
        self._users = users
        self._supervisor = supervisor
        self._forkserver = forkserver

    async def start(self) -> None:
        settings = self._settings
        database_url, redis_url = await self._start_servers()
        typer.echo("Preparing the database", err=True)
        environment = self._environment(database_url, redis_url)
        password = await self._prepare_database(environment)
        # Only now: the preparation of the database compares this runtime with the recorded one.
        runtime_choice.save_runtime(settings.data_dir, settings.runtime)
        try:
            await self._supervisor.start(self._forkserver)
            await asyncio.to_thread(runtime_choice.share_sockets, settings)
            parts = [self._part(name, environment) for name in PARTS]
            for part in parts:
                await self._supervisor.start(part)
            await self._wait_until_ready()
            self._start_watchdogs(parts)
        except BaseException:
            typer.echo(self._first_sign_in(password), nl=False)  # it is shown only once
            raise
        typer.echo(f"CodeHub is ready at {settings.base_url}\n{self._first_sign_in(password)}", nl=False)
        sys.stdout.flush()

    def _part(self, name: str, environment: Mapping[str, str]) -> Part:
        user = self._users.of(name)
        if user is not None:
            environment = part_users.reduced_environment(environment, reads_archives=name == "access")
            if name == "gateway":
                environment |= self._certificate_variables(user.uid)
        if name == "access":
            environment = part_users.reader_environment(environment)
        socket = Path(self._settings.internal_addresses(name)[0].removeprefix("unix:"))
        logs = self._settings.data_dir / "logs"
        return Part(name, self._forkserver, environment, logs, socket, user=user)

    def _certificate_variables(self, group: int) -> dict[str, str]:
        if (originals := certificate_checks.configured_certificate(self._settings)) is None:
            return {}
        copy = CertificateCopy(originals, self._settings.run_dir, group)
        self._supervisor.run_in_background(copy.run())
        return {"TLS_CERT_FILE": str(copy.files.chain), "TLS_KEY_FILE": str(copy.files.key)}

    def _start_watchdogs(self, parts: Sequence[Part]) -> None:
        settings = self._settings
        if settings.part_timeout_seconds:
            for part in parts:
                self._supervisor.run_in_background(watch(part, settings.part_timeout_seconds))

    async def _start_servers(self) -> tuple[str, str]:
        """Start the embedded servers, except those that the environment names; return both URLs."""
        settings = self._settings
        database_url, redis_url = settings.database_url, settings.redis_url
        if not database_url:
            typer.echo("Starting PostgreSQL", err=True)
            postgres = EmbeddedPostgres(
                settings.data_dir, settings.tools_dir, clients=self._users.servers_group
            )
            reserve = EmergencyReserve(settings.data_dir)
            reserve.check()  # a PostgreSQL that a full disk has stopped needs the space to start
            await self._supervisor.start(postgres)
            self._supervisor.run_in_background(reserve.run())
            database_url = postgres.url
        if not redis_url:
            typer.echo("Starting Redis", err=True)
            redis = EmbeddedRedis(settings.data_dir, settings.tools_dir, clients=self._users.servers_group)
            await self._supervisor.start(redis)
            redis_url = redis.url
        return database_url, redis_url

    async def _prepare_database(self, environment: Mapping[str, str]) -> str | None:
        """Prepare the database; return the first admin's password if this start generated one."""
        names = ("ADMIN_PASSWORD", "ADMIN_USERNAME")
        admin = {name: value for name in names if (value := os.environ.get(name)) is not None}
        code, output = await self._forkserver.run_program("first-start", {**environment, **admin})
        if code != 0:
            raise CommandError(f"the database could not be prepared (exit code {code}); the reason is above")
        result: dict[str, str | None] = json.loads(output)
        if error := result.get("error"):
            raise CommandError(error)
        return result["password"]

    def _environment(self, database_url: str, redis_url: str) -> Mapping[str, str]:
        settings = self._settings
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("ADMIN_PASSWORD", "ADMIN_USERNAME", "INTERNAL_KEY")
        }
        return environment | {
            "DATABASE_URL": database_url,
            "REDIS_URL": redis_url,
            "ARCHIVE_URL": settings.archive_store_url,
            "CODEHUB_DATA_DIR": str(settings.data_dir),
            "CODEHUB_TOOLS_DIR": str(settings.tools_dir.absolute()),
            "HOST": settings.host,
            "PORT": str(settings.port),
            "RUNTIME": settings.runtime,
            "GATEWAY_UID": str(settings.gateway_uid),
            "ACCESS_UID": str(settings.access_uid),
            "INSECURE_PROCESS_RUNTIME": str(settings.insecure_process_runtime).lower(),
            "PUBLIC_BASE_URL": settings.base_url,
            "API_LISTEN": "",  # a socket that only the gateway can reach
            "API_UPSTREAM": "",
            "ACCESS_LISTEN": "",
            "ACCESS_UPSTREAM": "",
        }

    async def _wait_until_ready(self) -> None:
        """Wait until the system answers at its public address."""
        typer.echo("Starting CodeHub", err=True)
        deadline = time.monotonic() + READY_SECONDS
        while True:
            self._supervisor.raise_if_any_ended()
            problem = await self._readiness_problem()
            if problem is None:
                return
            if time.monotonic() > deadline:
                raise CommandError(
                    f"CodeHub is not ready after {READY_SECONDS:.0f} s ({problem}); "
                    f"the logs are in {self._settings.data_dir / 'logs'}"
                )
            await asyncio.sleep(0.1)

    async def _readiness_problem(self) -> str | None:
        if not self._settings.api_socket.exists():
            return "the API has not started yet"
        if not self._settings.access_socket.exists():
            return "the access part has not started yet"
        return await asyncio.to_thread(_find_readiness_problem, self._settings)

    def _first_sign_in(self, password: str | None) -> str:
        if password is None:
            return ""
        return (
            f"  admin:    {self._settings.admin_username}\n"
            f"  password: {password}\n"
            "This password is shown only once; `codehub users passwd` sets another.\n"
        )


def _find_readiness_problem(settings: Settings) -> str | None:
    """Return what is missing until CodeHub is ready, or None.

    Every part can run the same checks. Only the API runs them here: a check costs unshared memory.
    """
    try:
        for name in PARTS:
            path = "/readyz" if name == "api" else "/healthz"
            status, body = internal_http.get(settings.internal_addresses(name)[0], path)
            if status != 200:
                return body.decode(errors="replace")
    except OSError as error:
        return f"{name} does not answer yet ({error})"
    return _public_port_error(settings)


def _public_port_error(settings: Settings) -> str | None:
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104
    scheme = "https" if settings.speaks_tls else "http"
    url = f"{scheme}://{f'[{address}]' if ':' in address else address}:{settings.port}/healthz"
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if settings.speaks_tls:
        handlers.append(urllib.request.HTTPSHandler(context=_unverified_context()))
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=5):
            return None
    except urllib.error.HTTPError as error:
        return error.read(2000).decode(errors="replace") or str(error)
    except OSError as error:
        return str(error)


def _unverified_context() -> ssl.SSLContext:
    """Return a context that skips verification.

    This is our own port, at another name than the public one.
    """
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _run_unless_stopped(work: Coroutine[None, None, None], stop: asyncio.Event) -> None:
    """Run the work, and cancel it if `stop` is set meanwhile."""
    starting, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        stopping.cancel()
        starting.result()
        return
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)


async def cancel_jobs(jobs: LocalJobs) -> None:
    """Kill all storage jobs.

    Jobs are crash-only: the next start runs them again from the beginning.
    """

    async def end(job_id: str) -> None:
        try:
            await jobs.cancel(job_id)
        except JobIsRunning as problem:
            logger.warning("a storage job still runs", job_id=job_id, problem=problem.message)

    await asyncio.gather(*(end(job_id) for job_id in await jobs.list()))


def check_port_free(host: str, port: int) -> None:
    """Raise CommandError if the port is in use.

    The gateway's workers share their port, and would share it with another process.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise CommandError(f"--host {host} is not an address of this machine: {error}") from error
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as error:
            raise CommandError(
                f"port {port} on {host} cannot be used ({error.strerror}): choose another with --port"
            ) from error


async def _check_settings(settings: Settings) -> None:
    """Check what the settings name, before anything is created."""
    _reject_internal_listen(settings)
    requirements.offered_images(settings)
    certificate_checks.require_certificate(settings)
    if settings.database_url:
        await requirements.require_database(settings.database_url)
    if settings.redis_url:
        await requirements.require_redis(settings.redis_url)


def _reject_internal_listen(settings: Settings) -> None:
    if settings.internal_listen:
        raise CommandError(
            "INTERNAL_LISTEN is for `codehub serve`: four parts cannot share one address. Unset it; under "
            f"`codehub up` the parts listen on {settings.run_dir}/{{api,gateway,coordinator}}-internal.sock"
        )


def _check_socket_path(data_dir: Path) -> None:
    """Raise EmbeddedError if the sockets of workspaces would have too long paths."""
    longest = data_dir / "runtime" / new_id() / "io" / "ide.sock"
    if (size := len(os.fsencode(longest))) > SOCKET_PATH_LIMIT:
        raise EmbeddedError(
            f"{longest} has {size} bytes, and the path of a socket may have {SOCKET_PATH_LIMIT}: "
            "choose a shorter --data-dir"
        )
