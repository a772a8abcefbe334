"""The docker runtime: a container is a container of a Docker Engine on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Network, ip_address
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from codehub.domain.ids import is_label_id
from codehub.domain.observation import ContainerFact
from codehub.domain.port_links import PortLinks
from codehub.domain.states import ErrorReason
from codehub.runtimes.base import ABSENT, RuntimeFailure, Unobservable, WorkloadSpec, output_excerpt
from codehub.runtimes.docker import host_files
from codehub.runtimes.docker.container_config import ContainerSettings, container_config, name_of, wanted_hash
from codehub.runtimes.docker.engine import ContainerSummary, Engine, EngineRefusal, EngineUnavailable
from codehub.runtimes.docker.firewall import Firewall
from codehub.runtimes.docker.networks import NetworkPool
from codehub.runtimes.docker.pull import RETRY_PAUSES, ImagePulls
from codehub.runtimes.egress import Egress
from codehub.runtimes.readiness import why_not_ready

logger = structlog.get_logger(__name__)

STOP_GRACE_SECONDS = 10.0
_PROBES_AT_ONCE = 64
_STARTS_AT_ONCE = 8
_LINES_IN_MESSAGE = 5
_LISTEN_AGAIN_SECONDS = 2.0
_TIDY_SECONDS = 60.0
_EXIT_MESSAGE_SECONDS = 2.0


@dataclass(frozen=True)
class DockerOptions:
    """`egress` None leaves the firewall to the administrator."""

    url: str
    root: Path
    """Where the runtime keeps files of its own."""
    network_pool: IPv4Network
    egress: Egress | None
    stop_grace: float = STOP_GRACE_SECONDS
    pull_pauses: tuple[float, ...] = RETRY_PAUSES
    port_links: PortLinks | None = None
    gateway_uid: int = field(default_factory=os.geteuid)
    """Whom the firewall lets connect to workspaces, besides this process."""


class DockerRuntime:
    name = "docker"

    def __init__(self, installation_id: str, options: DockerOptions) -> None:
        if not _is_on_this_machine(options.url):
            raise _unfit(
                f"{options.url} is not on this machine, from which homes are mounted into containers"
            )
        self._installation_id = installation_id
        self._options = options
        self._engine = Engine(options.url, installation_id)
        note = options.root / ".last-subnet"
        self._networks = NetworkPool(self._engine, installation_id, options.network_pool, note)
        self._firewall = (
            None
            if options.egress is None
            else Firewall(installation_id, str(options.network_pool), options.egress, _clients(options))
        )
        self._hint: Callable[[str], None] = _nobody
        self._pulls = ImagePulls(
            self._engine, lambda workspace_id: self._hint(workspace_id), options.pull_pauses
        )
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._starts = asyncio.Semaphore(_STARTS_AT_ONCE)
        self._probes = asyncio.Semaphore(_PROBES_AT_ONCE)
        self._exit_messages: dict[str, str] = {}

    async def close(self) -> None:
        await self._pulls.close()
        await self._engine.close()

    async def check(self) -> str:
        """What answers at the engine's address; a failure when workspaces could not run there."""
        with _as_runtime_failure():
            about = await self._engine.about()
        kind = str(about.get("OperatingSystem", ""))
        if any("rootless" in str(option) for option in about.get("SecurityOptions") or ()):
            raise _unfit("it runs without root, and its containers' addresses cannot be reached from here")
        if about.get("OSType") != "linux" or kind == "Docker Desktop":
            raise _unfit(f"it runs {kind} in a machine of its own, not on this one")
        if self._firewall is not None:
            await self._firewall.check()
        return f"Docker {about.get('ServerVersion')}"

    async def missing_images(self, references: Iterable[str]) -> list[str]:
        """Those that the first start will have to pull."""
        with _as_runtime_failure():
            return [reference for reference in references if not await self._engine.has_image(reference)]

    async def start(self, spec: WorkloadSpec) -> None:
        links = self._options.port_links
        variables = {} if links is None else links.variables(spec.workspace_id)
        host_files.check(spec)
        disk = host_files.disk_of_home(spec)
        setting = ContainerSettings(host_files.user_of(spec), self._options.root, variables, disk)
        async with self._turn(spec.workspace_id):
            with _as_runtime_failure():
                await self._start(spec, setting)

    async def _start(self, spec: WorkloadSpec, setting: ContainerSettings) -> None:
        reference = spec.image.docker or ""
        found = await self._find(spec.workspace_id)
        if found is not None and found.runs and found.config == wanted_hash(spec, setting):
            return
        if not await self._pulls.is_here(reference, spec.workspace_id):
            return
        async with self._starts:
            if found is not None:
                await self._end(found)
            await self._run(spec, setting)

    async def _run(self, spec: WorkloadSpec, setting: ContainerSettings) -> None:
        host_files.prepare(spec, setting)
        try:
            await self._engine.start(await self._create_behind_the_wall(spec, setting))
        except EngineRefusal:
            found = await self._find(spec.workspace_id)
            if found is not None and not found.runs:
                await self._engine.remove(found.id)
            raise

    async def _create_behind_the_wall(self, spec: WorkloadSpec, setting: ContainerSettings) -> str:
        """Both at once, and neither goes on after this: the next start would meet what it leaves."""
        wall = asyncio.create_task(self._ensure_firewall())
        try:
            return await self._create(spec, setting)
        finally:
            await wall

    async def _create(self, spec: WorkloadSpec, setting: ContainerSettings) -> str:
        name = name_of(spec.workspace_id)
        async with self._networks.take() as place:
            config = container_config(spec, setting, self._installation_id, place.name, place.address)
            return await self._engine.create(name, config)

    async def stop(self, workspace_id: str) -> None:
        async with self._turn(workspace_id):
            with _as_runtime_failure():
                found = await self._find(workspace_id)
                if found is not None and found.runs:
                    await self._engine.stop(found.id, self._options.stop_grace)

    async def delete(self, workspace_id: str) -> None:
        async with self._turn(workspace_id):
            with _as_runtime_failure():
                found = await self._find(workspace_id)
                if found is not None:
                    await self._end(found)
                host_files.forget(self._options.root, workspace_id)

    async def _end(self, found: ContainerSummary) -> None:
        if found.runs:
            await self._engine.stop(found.id, self._options.stop_grace)
        try:
            await self._engine.remove(found.id)
        except EngineUnavailable as error:
            await self._set_aside(found, error)
        await self._networks.remove(found.network)

    async def _set_aside(self, found: ContainerSummary, error: EngineUnavailable) -> None:
        """A dead container whose files the engine cannot let go of must not keep its workspace's name."""
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
        return None if found is None or not found.runs else found.upstream

    async def status(self, workspace_id: str) -> ContainerFact:
        with _as_unobservable():
            found = await self._find(workspace_id)
            if found is not None:
                return await self._fact(found)
        pulling = self._pulls.of(workspace_id)
        if pulling is None:
            return ABSENT
        words, progress = pulling
        return ContainerFact(False, False, False, None, None, words, progress)

    async def observe(self) -> dict[str, ContainerFact]:
        with _as_unobservable():
            containers = await self._engine.containers()
            facts = await asyncio.gather(*map(self._fact, containers))
        present = {found.id for found in containers}
        self._exit_messages = {name: words for name, words in self._exit_messages.items() if name in present}
        return {found.workspace_id: fact for found, fact in zip(containers, facts, strict=True)}

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
        """Say which workspace to look at, as the engine tells of its containers; for ever.

        Whatever happened while nobody listened is found by the look at all that `resync` asks for.
        """
        self._hint = hint
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._again(lambda: self._listen(hint, resync), _LISTEN_AGAIN_SECONDS))
            tasks.create_task(self._again(self._tidy_when_wanting, _LISTEN_AGAIN_SECONDS))

    async def _again(self, work: Callable[[], Awaitable[None]], pause: float) -> None:
        while True:
            try:
                await work()
            except (EngineUnavailable, EngineRefusal, RuntimeFailure) as error:
                logger.warning("the Docker engine cannot be listened to, or tidied up", error=str(error))
            await asyncio.sleep(pause)

    async def _tidy_when_wanting(self) -> None:
        await self.tidy()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TIDY_SECONDS):
                await self._networks.wanting.wait()

    async def _listen(self, hint: Callable[[str], None], resync: Callable[[], None]) -> None:
        async with aclosing(self._engine.events()) as events:
            async for workspace_id in events:
                if workspace_id is None:
                    resync()
                else:
                    hint(workspace_id)

    async def tidy(self) -> None:
        """Put the firewall up where it is gone, remove what no container uses, keep some networks ready."""
        await self._ensure_firewall()
        await self._forget_lost()
        await self._networks.tidy()

    async def leave(self) -> None:
        """Nothing will be started here any more."""
        with _as_runtime_failure():
            await self._forget_lost()
            await self._networks.tidy(spares=0)

    async def _forget_lost(self) -> None:
        """Containers that went by `docker rm` leave their files."""
        root = self._options.root
        names = {name for name in host_files.prepared(root) if is_label_id(name)}
        for workspace_id in names - {found.workspace_id for found in await self._engine.containers()}:
            async with self._turn(workspace_id):
                if await self._find(workspace_id) is None:
                    host_files.forget(root, workspace_id)

    async def _ensure_firewall(self) -> None:
        if self._firewall is not None:
            await self._firewall.ensure()

    async def _find(self, workspace_id: str) -> ContainerSummary | None:
        if not is_label_id(workspace_id):
            raise ValueError(f"{workspace_id!r} is no workspace id")
        containers = await self._engine.containers(workspace_id)
        return containers[0] if containers else None

    async def _fact(self, found: ContainerSummary) -> ContainerFact:
        if not found.runs:
            # One that was made and never started has not failed: the next start makes it anew.
            op_id = found.op_id if found.state == "exited" else None
            return ContainerFact(True, False, False, None, op_id, await self._exit_message(found))
        if found.upstream is None:
            return ContainerFact(True, True, False, None, found.op_id, "it has no address yet")
        async with self._probes:
            reason = await why_not_ready(found.upstream, found.ready_path)
        return ContainerFact(True, True, reason is None, found.upstream, found.op_id, reason or "")

    async def _exit_message(self, found: ContainerSummary) -> str:
        """Why a container that exists does not run, with what it said last."""
        if found.state != "exited":
            return f"it is {found.state}"
        if found.id not in self._exit_messages:
            try:
                # One that the engine hangs on must not hide the others, which it has just told of.
                async with asyncio.timeout(_EXIT_MESSAGE_SECONDS):
                    self._exit_messages[found.id] = await self._how_it_ended(found.id)
            except EngineRefusal:
                return "it is being removed"
            except EngineUnavailable as error:
                return f"how it ended cannot be told: {output_excerpt(str(error))}"
            except TimeoutError:
                return "how it ended cannot be told: the engine does not say"
        return self._exit_messages[found.id]

    async def _how_it_ended(self, container_id: str) -> str:
        death = await self._engine.death(container_id)
        if death.oom_killed:
            return "it was killed because it used more memory than it may"
        if death.error:
            return f"it could not be run: {output_excerpt(death.error)}"
        output = output_excerpt((await self._engine.output(container_id, _LINES_IN_MESSAGE)).strip())
        return f"it exited with code {death.code}" + (f": {output}" if output else ", without a word")

    @asynccontextmanager
    async def _turn(self, workspace_id: str) -> AsyncIterator[None]:
        """One effect at a time on one workspace."""
        turn = self._turns.setdefault(workspace_id, asyncio.Lock())
        async with turn:
            yield


def _clients(options: DockerOptions) -> tuple[int, ...]:
    return (os.geteuid(), options.gateway_uid)


def _nobody(_workspace_id: str) -> None:
    """Nobody listens for hints yet."""


def _is_on_this_machine(url: str) -> bool:
    try:
        host = urlsplit(url).hostname or ""
        on_loopback = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        on_loopback = False
    return url.startswith("unix://") or (url.startswith("tcp://") and on_loopback)


def _unfit(why: str) -> RuntimeFailure:
    return RuntimeFailure(ErrorReason.ActionFailed, f"the Docker engine does not fit: {why}")


@contextmanager
def _as_unobservable() -> Iterator[None]:
    """What the engine does not tell is unknown, never gone."""
    try:
        yield
    except (EngineUnavailable, EngineRefusal) as error:
        raise Unobservable(str(error)) from error


@contextmanager
def _as_runtime_failure() -> Iterator[None]:
    try:
        yield
    except EngineUnavailable as error:
        raise RuntimeFailure(ErrorReason.Unreachable, str(error)) from error
    except EngineRefusal as refusal:
        lost = "bind source path does not exist" in refusal.message
        reason = ErrorReason.ContainerWithoutVolume if lost else ErrorReason.ActionFailed
        raise RuntimeFailure(reason, f"the Docker engine refuses: {refusal.message}") from refusal
