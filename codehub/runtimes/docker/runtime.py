"""The docker runtime: containers of a Docker Engine on this machine (ADR 0010)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Network, ip_address
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from codehub.domain.ids import is_label_id
from codehub.domain.observation import ContainerFact, Unknown
from codehub.domain.port_links import PortLinks
from codehub.domain.resource_usage import ResourceUsage
from codehub.domain.states import ErrorReason
from codehub.runtimes.base import ABSENT, RuntimeFailure, RuntimeUnobservable, WorkloadSpec, output_excerpt
from codehub.runtimes.docker import host_files
from codehub.runtimes.docker.commands import DockerCommands
from codehub.runtimes.docker.container_config import (
    ContainerSettings,
    container_config,
    desired_hash,
    name_of,
)
from codehub.runtimes.docker.engine import ContainerSummary, Engine, EngineRefusal, EngineUnavailable
from codehub.runtimes.docker.firewall import Firewall
from codehub.runtimes.docker.networks import NetworkPool
from codehub.runtimes.docker.pull import RETRY_PAUSES, ImagePulls
from codehub.runtimes.docker.resource_usage import ResourceMeter
from codehub.runtimes.egress import Egress
from codehub.runtimes.readiness import why_not_ready

logger = structlog.get_logger(__name__)

STOP_GRACE_SECONDS = 10.0
_MAX_READINESS_CHECKS = 64
_MAX_STARTS = 8
_LINES_IN_MESSAGE = 5
_RETRY_SECONDS = 2.0
_CLEANUP_SECONDS = 60.0
_EXIT_MESSAGE_SECONDS = 2.0
_RECORD_SECONDS = 2.0
"""How long a stop waits until the ends of commands are recorded."""


@dataclass(frozen=True)
class DockerOptions:
    """Options of the Docker runtime."""

    url: str
    root: Path
    """Directory for the runtime's own files."""
    network_pool: IPv4Network
    egress: Egress | None
    """None if the administrator provides the firewall."""
    executions: Path
    """Directory for the commands of workspaces."""
    stop_grace: float = STOP_GRACE_SECONDS
    pull_pauses: tuple[float, ...] = RETRY_PAUSES
    port_links: PortLinks | None = None
    gateway_uid: int = field(default_factory=os.geteuid)
    """The user that may connect to workspaces, besides that of this process."""
    access_uid: int | None = None
    """Another one. None if the access part runs as the same user as this process."""


class DockerRuntime:
    """Runtime that uses a Docker Engine."""

    name = "docker"

    def __init__(self, installation_id: str, options: DockerOptions) -> None:
        if not _is_on_this_machine(options.url):
            raise _unsuitable(
                f"the engine {options.url} runs on another machine, but the homes that containers mount "
                "are on this one"
            )
        self._installation_id = installation_id
        self._options = options
        self._engine = Engine(options.url, installation_id)
        last_subnet = options.root / ".last-subnet"
        self._networks = NetworkPool(self._engine, installation_id, options.network_pool, last_subnet)
        self._firewall = (
            None
            if options.egress is None
            else Firewall(installation_id, str(options.network_pool), options.egress, _clients(options))
        )
        self._hint: Callable[[str], None] = _ignore_hint
        self._pulls = ImagePulls(
            self._engine, lambda workspace_id: self._hint(workspace_id), options.pull_pauses
        )
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._starts = asyncio.Semaphore(_MAX_STARTS)
        self._readiness_checks = asyncio.Semaphore(_MAX_READINESS_CHECKS)
        self._exit_messages: dict[str, str] = {}
        self._meter = ResourceMeter(self._engine)
        self.commands = DockerCommands(options.executions, options.url, installation_id)

    async def close(self) -> None:
        await self._pulls.close()
        await self._engine.close()

    async def check(self) -> str:
        """Return the engine's version, or raise RuntimeFailure if workspaces cannot run there."""
        with _as_runtime_failure():
            info = await self._engine.info()
        kind = str(info.get("OperatingSystem", ""))
        if any("rootless" in str(option) for option in info.get("SecurityOptions") or ()):
            raise _unsuitable(
                "it is rootless, so the addresses of its containers cannot be reached from here"
            )
        if info.get("OSType") != "linux" or kind == "Docker Desktop":
            raise _unsuitable(f"it runs {kind} in a virtual machine, not on this machine")
        if self._firewall is not None:
            await self._firewall.check()
        return f"Docker {info.get('ServerVersion')}"

    async def missing_images(self, references: Iterable[str]) -> list[str]:
        """Return the images that the first start will have to pull."""
        with _as_runtime_failure():
            return [reference for reference in references if not await self._engine.has_image(reference)]

    async def start(self, spec: WorkloadSpec) -> None:
        links = self._options.port_links
        variables = {} if links is None else links.environment_variables(spec.workspace_id)
        host_files.check_home_and_image(spec)
        disk = host_files.disk_of_home(spec)
        settings = ContainerSettings(host_files.user_of(spec), self._options.root, variables, disk)
        async with self._lock(spec.workspace_id):
            with _as_runtime_failure():
                await self._start(spec, settings)

    async def _start(self, spec: WorkloadSpec, settings: ContainerSettings) -> None:
        reference = spec.image.docker or ""
        found = await self._find(spec.workspace_id)
        if found is not None and found.is_running and found.config == desired_hash(spec, settings):
            return
        if not await self._pulls.ensure(reference, spec.workspace_id):
            return
        async with self._starts:
            if found is not None:
                await self._remove(found)
            await self._run(spec, settings)

    async def _run(self, spec: WorkloadSpec, settings: ContainerSettings) -> None:
        host_files.prepare(spec, settings)
        try:
            await self._engine.start(await self._create_with_firewall(spec, settings))
        except EngineRefusal:
            found = await self._find(spec.workspace_id)
            if found is not None and not found.is_running:
                await self._engine.remove(found.id)
            raise

    async def _create_with_firewall(self, spec: WorkloadSpec, settings: ContainerSettings) -> str:
        """Create the container while the firewall is installed.

        Wait for both even after an error: the next start must not run beside either.
        """
        firewall = asyncio.create_task(self._ensure_firewall())
        try:
            return await self._create(spec, settings)
        finally:
            await firewall

    async def _create(self, spec: WorkloadSpec, settings: ContainerSettings) -> str:
        name = name_of(spec.workspace_id)
        async with self._networks.reserve() as subnet:
            config = container_config(spec, settings, self._installation_id, subnet.name, subnet.address)
            return await self._engine.create(name, config)

    async def stop(self, workspace_id: str) -> None:
        async with self._lock(workspace_id):
            with _as_runtime_failure():
                found = await self._find(workspace_id)
                if found is not None:
                    await self._stop(found)

    async def delete(self, workspace_id: str) -> None:
        async with self._lock(workspace_id):
            with _as_runtime_failure():
                found = await self._find(workspace_id)
                if found is not None:
                    await self._remove(found)
                host_files.remove(self._options.root, workspace_id)

    async def _stop(self, found: ContainerSummary) -> None:
        """Stop a container. Its commands get SIGTERM first: the engine signals only the IDE."""
        if not found.is_running:
            return
        await self.commands.terminate(found.workspace_id, self._options.stop_grace / 2)
        await self._engine.stop(found.id, self._options.stop_grace)
        await self.commands.wait(found.workspace_id, _RECORD_SECONDS)

    async def _remove(self, found: ContainerSummary) -> None:
        await self._stop(found)
        try:
            await self._engine.remove(found.id)
        except EngineUnavailable as error:
            await self._set_aside(found, error)
        await self._networks.remove(found.network)

    async def _set_aside(self, found: ContainerSummary, error: EngineUnavailable) -> None:
        """Rename a dead container that the engine cannot remove, so that the name is free."""
        left = await self._find(found.workspace_id)
        if left is None:
            return
        if left.id != found.id or left.state not in ("dead", "removing"):
            raise error
        name = f"{name_of(found.workspace_id)}-dead-{found.id[:12]}"
        logger.warning("the engine cannot remove a dead container", name=name, error=str(error))
        await self._engine.rename(found.id, name)

    async def upstream(self, workspace_id: str) -> str | None:
        with _as_unobservable():
            found = await self._find(workspace_id)
        return None if found is None or not found.is_running else found.upstream

    async def status(self, workspace_id: str) -> ContainerFact:
        with _as_unobservable():
            found = await self._find(workspace_id)
            if found is not None:
                return await self._fact(found)
        pulling = self._pulls.status_of(workspace_id)
        if pulling is None:
            return ABSENT
        message, progress = pulling
        return ContainerFact(False, False, False, None, None, message, progress)

    async def observe(self) -> dict[str, ContainerFact]:
        with _as_unobservable():
            containers = await self._engine.containers()
            facts = await asyncio.gather(*map(self._fact, containers))
        present = {found.id for found in containers}
        self._exit_messages = {
            name: message for name, message in self._exit_messages.items() if name in present
        }
        return {found.workspace_id: fact for found, fact in zip(containers, facts, strict=True)}

    async def resource_usage(
        self, workspace_ids: Sequence[str], within: float
    ) -> dict[str, ResourceUsage | Unknown]:
        with _as_unobservable():
            containers = await self._engine.containers()
        running = {found.workspace_id: found for found in containers if found.is_running}
        self._meter.forget_others({found.id for found in running.values()})
        return await self._meter.measure([running[name] for name in workspace_ids if name in running], within)

    async def ping(self) -> None:
        with _as_unobservable():
            await self._engine.ping()

    async def logs(self, workspace_id: str, lines: int) -> str:
        with _as_unobservable():
            found = await self._find(workspace_id)
            if found is None or lines < 1:
                return ""
            return (await self._engine.output(found.id, lines)).rstrip("\n")

    async def hints(self, hint: Callable[[str], None], resync: Callable[[], None]) -> None:
        """Call `hint` with the workspace of each event of the engine. Runs until it is cancelled.

        Events may be lost while there is no connection. `resync` is called once there is one again.
        """
        self._hint = hint
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(lambda: self._listen(hint, resync), _RETRY_SECONDS))
            tasks.create_task(self._repeat(self._clean_up_when_needed, _RETRY_SECONDS))

    async def _repeat(self, work: Callable[[], Awaitable[None]], pause: float) -> None:
        while True:
            try:
                await work()
            except (EngineUnavailable, EngineRefusal, RuntimeFailure) as error:
                logger.warning("cannot read events of the Docker engine, or clean up there", error=str(error))
            await asyncio.sleep(pause)

    async def _clean_up_when_needed(self) -> None:
        await self.clean_up()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLEANUP_SECONDS):
                await self._networks.needs_spares.wait()

    async def _listen(self, hint: Callable[[str], None], resync: Callable[[], None]) -> None:
        async with aclosing(self._engine.events()) as events:
            async for workspace_id in events:
                if workspace_id is None:
                    resync()
                else:
                    hint(workspace_id)

    async def clean_up(self) -> None:
        """Restore the firewall, remove what no container uses, and keep networks ready."""
        await self._ensure_firewall()
        await self.commands.end_orphans()
        await self._remove_orphaned_files()
        await self._networks.clean_up()

    async def release_resources(self) -> None:
        """Remove unused networks and files.

        To be called when this runtime will start nothing more.
        """
        with _as_runtime_failure():
            await self._remove_orphaned_files()
            await self._networks.clean_up(spares=0)

    async def _remove_orphaned_files(self) -> None:
        """Remove the files of containers that were removed by `docker rm`."""
        root = self._options.root
        names = {name for name in host_files.workspaces_with_files(root) if is_label_id(name)}
        for workspace_id in names - {found.workspace_id for found in await self._engine.containers()}:
            async with self._lock(workspace_id):
                if await self._find(workspace_id) is None:
                    host_files.remove(root, workspace_id)

    async def _ensure_firewall(self) -> None:
        if self._firewall is not None:
            await self._firewall.ensure()

    async def _find(self, workspace_id: str) -> ContainerSummary | None:
        if not is_label_id(workspace_id):
            raise ValueError(f"{workspace_id!r} is not a workspace id")
        containers = await self._engine.containers(workspace_id)
        return containers[0] if containers else None

    async def _fact(self, found: ContainerSummary) -> ContainerFact:
        if not found.is_running:
            # A container that was created and never started has not failed: the next start replaces
            # it.
            op_id = found.op_id if found.state == "exited" else None
            return ContainerFact(True, False, False, None, op_id, await self._exit_message(found))
        if found.upstream is None:
            return ContainerFact(True, True, False, None, found.op_id, "it has no address yet")
        async with self._readiness_checks:
            reason = await why_not_ready(found.upstream, found.ready_path)
        return ContainerFact(True, True, reason is None, found.upstream, found.op_id, reason or "")

    async def _exit_message(self, found: ContainerSummary) -> str:
        """Return why an existing container does not run, with the end of its output."""
        if found.state != "exited":
            return f"it is {found.state}"
        if found.id not in self._exit_messages:
            try:
                # The engine may hang on one container. That must not hide the others.
                async with asyncio.timeout(_EXIT_MESSAGE_SECONDS):
                    self._exit_messages[found.id] = await self._describe_exit(found.id)
            except EngineRefusal:
                return "it is being removed"
            except EngineUnavailable as error:
                return f"its exit status is unknown: {output_excerpt(str(error))}"
            except TimeoutError:
                return "its exit status is unknown: the engine did not answer in time"
        return self._exit_messages[found.id]

    async def _describe_exit(self, container_id: str) -> str:
        exit_ = await self._engine.exit_of(container_id)
        if exit_.oom_killed:
            return "it was killed because it exceeded its memory limit"
        if exit_.error:
            return f"it could not run: {output_excerpt(exit_.error)}"
        output = output_excerpt((await self._engine.output(container_id, _LINES_IN_MESSAGE)).strip())
        return f"it exited with code {exit_.code}" + (f": {output}" if output else ", with no output")

    @asynccontextmanager
    async def _lock(self, workspace_id: str) -> AsyncIterator[None]:
        """Allow one change at a time for each workspace."""
        lock = self._locks.setdefault(workspace_id, asyncio.Lock())
        async with lock:
            yield


def _clients(options: DockerOptions) -> tuple[int, ...]:
    users = (os.geteuid(), options.gateway_uid, options.access_uid)
    return tuple(uid for uid in users if uid is not None)


def _ignore_hint(_workspace_id: str) -> None:
    """Do nothing. The default until `hints` is called."""


def _is_on_this_machine(url: str) -> bool:
    try:
        host = urlsplit(url).hostname or ""
        on_loopback = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        on_loopback = False
    return url.startswith("unix://") or (url.startswith("tcp://") and on_loopback)


def _unsuitable(why: str) -> RuntimeFailure:
    return RuntimeFailure(ErrorReason.ActionFailed, f"this Docker engine cannot run workspaces: {why}")


@contextmanager
def _as_unobservable() -> Iterator[None]:
    """Raise RuntimeUnobservable for errors of the engine: its containers are unknown, not gone."""
    try:
        yield
    except (EngineUnavailable, EngineRefusal) as error:
        raise RuntimeUnobservable(str(error)) from error


@contextmanager
def _as_runtime_failure() -> Iterator[None]:
    """Raise RuntimeFailure for errors of the engine."""
    try:
        yield
    except EngineUnavailable as error:
        raise RuntimeFailure(ErrorReason.Unreachable, str(error)) from error
    except EngineRefusal as refusal:
        lost = "bind source path does not exist" in refusal.message
        reason = ErrorReason.ContainerWithoutVolume if lost else ErrorReason.ActionFailed
        raise RuntimeFailure(
            reason, f"the Docker engine rejected the request: {refusal.message}"
        ) from refusal
