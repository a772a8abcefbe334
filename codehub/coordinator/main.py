"""Entry point of the coordinator process: builds its parts from the settings."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from codehub import health_endpoints, internal_http
from codehub.coordinator.leadership_loop import run_elections
from codehub.coordinator.metrics import CoordinatorMetrics
from codehub.coordinator.owner_message_filter import OwnerMessageFilter
from codehub.coordinator.postgres_backend import PostgresBackend
from codehub.coordinator.provider_interfaces import Providers
from codehub.coordinator.storage_claims import make_claim_attempt, make_storage_location
from codehub.coordinator.work_queue import WORKERS
from codehub.database import installation, schema_version
from codehub.database.engine import create_engine
from codehub.domain.path_redaction import PathRedactor
from codehub.domain.port_links import PortLinks
from codehub.images_file import offered_images
from codehub.runtimes import recorded_commands
from codehub.runtimes.base import Runtime
from codehub.runtimes.egress import Egress, host_nameservers
from codehub.runtimes.process.runtime import ProcessRuntime
from codehub.settings import Settings
from codehub.storage.archive.async_archive_store import ArchiveStore
from codehub.storage.archive.group_access import GroupInUse, share_with_group
from codehub.storage.archive.open_object_store import directory_of
from codehub.storage.jobs.local_jobs import LocalJobs
from codehub.storage.jobs.spec import StorageLocation
from codehub.storage.volumes.local_volumes import LocalVolumes
from codehub.ulids import new_id

if TYPE_CHECKING:  # the client of the Docker Engine is loaded where Docker is used
    from codehub.runtimes.docker.runtime import DockerOptions, DockerRuntime

logger = structlog.get_logger(__name__)

THREADS = 2 * WORKERS


def enlarge_thread_pool() -> None:
    """Enlarge the default thread pool, which a few hung observations or effects would exhaust."""
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="coordinator")
    asyncio.get_running_loop().set_default_executor(pool)


async def run(settings: Settings, stop: asyncio.Event) -> None:
    """Coordinate until `stop` is set."""
    metrics = CoordinatorMetrics()
    handlers = health_endpoints.handlers(settings.database_url, settings.redis_url, metrics.exposition)
    async with internal_http.listen_and_serve(settings.internal_addresses("coordinator"), handlers):
        await _coordinate(settings, stop, metrics)


async def _coordinate(settings: Settings, stop: asyncio.Event, metrics: CoordinatorMetrics) -> None:
    enlarge_thread_pool()
    engine = create_engine(settings.database_url)
    try:
        await schema_version.check_schema(engine)
        own_installation = await installation.load_or_create_installation(
            engine, new_id(), settings.workspace_uid_base
        )
    finally:
        await engine.dispose()
    providers = make_providers(settings, own_installation.id)
    claim = make_claim_attempt(settings.database_url, providers.storage_location)
    beside = [asyncio.create_task(_warm_up(providers.runtime))]

    async def claim_and_share() -> bool:
        claimed = await claim()
        if claimed and settings.access_group is not None:
            beside.append(
                asyncio.create_task(_share_archives(settings.archive_store_url, settings.access_group))
            )
        return claimed

    providers = replace(providers, claim=claim_and_share)
    try:
        await run_elections(settings, providers, PostgresBackend(settings), stop=stop, metrics=metrics)
    finally:
        await asyncio.gather(*beside)
        await providers.runtime.close()


async def _warm_up(runtime: Runtime) -> None:
    """Prepare what starts need. This runs beside the coordinator, so that stops need not wait for it."""
    if isinstance(runtime, ProcessRuntime):
        await runtime.warm_up()
        await runtime.finish_removals()


async def _share_archives(url: str, group: int) -> None:
    """Let the access part read archives in a directory (ADR 0040). Nothing else waits for it."""
    root = directory_of(url)
    if root is None:
        return
    try:
        await asyncio.to_thread(share_with_group, root, group)
    except (GroupInUse, OSError) as error:
        logger.warning(
            "the access part cannot read all archives, so downloads of them fail: give the directory to its "
            "group, which CodeHub then lets read the files, and restart the coordinator",
            reason=str(error),
            command=f"chgrp -R {group} {root}",
        )


def make_providers(settings: Settings, installation_id: str) -> Providers:
    data_dir = settings.data_dir
    location = make_storage_location(settings, installation_id)
    runtime = make_runtime(settings, installation_id)
    return Providers(
        runtime=runtime,
        volumes=LocalVolumes(location.volumes_root, installation_id),
        archives=ArchiveStore(location.archive_url, installation_id),
        jobs=LocalJobs(data_dir / "jobs", settings.archives_at_once),
        images=offered_images(settings.images_text, settings.runtime),
        storage_location=location,
        messages=OwnerMessageFilter(host_paths(settings, location)),
        hints=runtime.hints,
        commands=runtime.commands,
    )


def host_paths(settings: Settings, location: StorageLocation) -> PathRedactor:
    """Return the paths of this host that messages of the runtime and the storage may contain."""
    data_dir = settings.data_dir.absolute()
    names = {str(path): "CodeHub's data directory" for path in (data_dir, data_dir.resolve())}
    names[str(settings.tools_dir.absolute())] = "CodeHub's tools directory"
    names["/sys/fs/cgroup"] = "the control groups"
    for url, name in ((location.archive_url, "on this machine"), (settings.docker_host, "its socket")):
        scheme, _, path = url.partition("://")
        if scheme in ("file", "unix"):
            names[path] = name
    return PathRedactor(names)


def make_runtime(settings: Settings, installation_id: str) -> ProcessRuntime | DockerRuntime:
    if settings.runtime == "docker":
        from codehub.runtimes.docker.runtime import DockerRuntime

        return DockerRuntime(installation_id, docker_options(settings))
    return ProcessRuntime(
        settings.data_dir / "runtime",
        settings.tools_dir,
        egress=Egress(settings.port, settings.allowed_egress),
        insecure=settings.insecure_process_runtime,
        port_links=PortLinks(settings.base_url, settings.apps_host),
        secrets=[settings.tls_key_file] if settings.tls_key_file else [],
        gateway_group=settings.gateway_group,
        access_group=settings.access_group,
    )


def docker_options(settings: Settings) -> DockerOptions:
    from codehub.runtimes.docker.runtime import DockerOptions

    egress = Egress(settings.port, settings.allowed_egress, host_nameservers())
    return DockerOptions(
        settings.docker_host,
        settings.data_dir / "runtime" / ".docker",
        settings.docker_network_pool,
        egress if settings.docker_firewall else None,
        settings.data_dir / recorded_commands.DIRECTORY,
        port_links=PortLinks(settings.base_url, settings.apps_host),
        gateway_uid=settings.gateway_uid,
        access_uid=settings.access_uid,
    )
