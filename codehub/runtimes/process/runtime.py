"""The process runtime: a container is a sandboxed tree of local processes with a keeper of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from codehub.domain.ids import is_label_id
from codehub.domain.observation import ContainerFact, Unknown
from codehub.domain.port_links import PortLinks
from codehub.domain.states import ErrorReason
from codehub.host.processes import ProcessId, boot_id, processes_with_argument
from codehub.runtimes.base import ABSENT, RuntimeFailure, Unobservable, WorkloadSpec, output_excerpt
from codehub.runtimes.egress import DEFAULT_EGRESS, Egress
from codehub.runtimes.process import cgroups, keeper, keeper_request_builder
from codehub.runtimes.process.forkserver_client import FORK_SERVER
from codehub.runtimes.process.isolation_probe import find_barriers
from codehub.runtimes.process.keeper_request import LAUNCH_WITHIN_SECONDS, KeeperRequest
from codehub.runtimes.process.keeper_request_builder import RuntimeConfig
from codehub.runtimes.process.resource_limits import find_cgroups
from codehub.runtimes.process.sandbox import IsolationBarriers
from codehub.runtimes.process.stale_processes import Isolation, StaleProcessesAlive, kill_stale_processes
from codehub.runtimes.process.state_directory import (
    LONGEST_SOCKET_PATH,
    State,
    StateCorrupted,
    StateDirectory,
    unfinished_removals,
)
from codehub.runtimes.readiness import why_not_ready

logger = structlog.get_logger(__name__)

STOP_GRACE_SECONDS = 10.0
_KEEPER_GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.02
_LISTENS_POLL_SECONDS = 0.01
_LISTENS_WITHIN_SECONDS = 60.0
_PROBES_AT_ONCE = 32
_FORGOTTEN_SECONDS = 3600.0
_LINES_IN_MESSAGE = 5


@dataclass(frozen=True)
class _Look:
    """One container as its directory tells it, before the IDE itself is asked."""

    alive: bool
    state: State | None
    trouble: str = ""
    upstream: str | None = None


class ProcessRuntime:
    """Containers below `root` (`{data_dir}/runtime`), with the programs in `tools`."""

    name = "process"

    def __init__(
        self,
        root: Path,
        tools: Path,
        *,
        egress: Egress = DEFAULT_EGRESS,
        insecure: bool = False,
        stop_grace: float = STOP_GRACE_SECONDS,
        port_links: PortLinks | None = None,
        secrets: Sequence[Path] = (),
        gateway_group: int | None = None,
    ) -> None:
        self._root = root.absolute()
        self._config = RuntimeConfig(
            tools.absolute(), self._root.parent, egress, stop_grace, port_links, secrets, gateway_group
        )
        self._gateway_group = gateway_group
        self._insecure = insecure
        self._stop_grace = stop_grace
        self._barriers: IsolationBarriers | None = None
        self._looking = asyncio.Lock()
        self._probes = asyncio.Semaphore(_PROBES_AT_ONCE)
        self._starting: dict[str, float] = {}
        """Until when a workspace's IDE may still begin to listen."""
        self._started = asyncio.Event()
        self._root.mkdir(mode=0o711, parents=True, exist_ok=True)

    async def barriers(self) -> IsolationBarriers:
        """What separates workspaces here; a failure when nothing does and nobody has accepted that."""
        async with self._looking:
            if self._barriers is None:
                self._barriers = await find_barriers()
        if os.geteuid() == 0 and self._barriers.setpriv is None:
            message = "setpriv is missing, without which a workspace would run as root: install util-linux"
            raise RuntimeFailure(ErrorReason.ActionFailed, message)
        if self._barriers.isolation is Isolation.NONE and not self._insecure:
            raise RuntimeFailure(
                ErrorReason.ActionFailed,
                "there is no wall between workspaces on this machine: CodeHub does not run as root, and "
                f"{self._barriers.why_not_better}. Every workspace could read and change every other one. "
                "Fix that, or accept it with --insecure-process-runtime",
            )
        return self._barriers

    async def close(self) -> None:
        """Keepers belong to nobody: there is nothing to release."""

    async def warm_up(self) -> None:
        """Do what the first start would wait for. What goes wrong goes wrong again, and is told, there."""
        try:
            barriers = await self.barriers()
            _tell(barriers)
            await asyncio.to_thread(FORK_SERVER.warm_up)
            await asyncio.to_thread(cgroups.sweep, barriers.cgroups.every_parent, _FORGOTTEN_SECONDS)
        except (RuntimeFailure, OSError) as error:
            logger.warning("no workspace can be started here: %s", error)

    async def finish_removals(self) -> None:
        """What a crash left of them. One that is still under way holds its lock, and is left alone."""
        for directory in await asyncio.to_thread(unfinished_removals, self._root):
            try:
                await asyncio.to_thread(directory.remove)
            except OSError as error:
                logger.warning("%s cannot be removed: %s", directory.path, error)

    def share_sockets(self) -> None:
        """Let the gateway's group connect to workspaces that started when the gateway ran as root."""
        if self._gateway_group is None:
            return
        for path in self._root.iterdir():
            if not is_label_id(path.name) or not path.is_dir():
                continue
            try:
                StateDirectory(path).share(self._gateway_group)
            except OSError as error:
                logger.warning("the gateway cannot reach %s: %s", path, error)

    async def start(self, spec: WorkloadSpec) -> None:
        barriers = await self.barriers()
        directory = self._directory(spec.workspace_id)
        self._check(spec, directory)
        request = await asyncio.to_thread(
            keeper_request_builder.build_request, spec, barriers, directory, self._config
        )
        answer = keeper.GONE
        for _ in range(3):
            if answer == keeper.GONE:
                answer = await self._launch(request, directory)
        if answer not in (keeper.STARTED, keeper.ALREADY_RUNNING):
            message = f"the container did not start: {output_excerpt(answer)}"
            raise RuntimeFailure(ErrorReason.ActionFailed, message)
        self._starting[spec.workspace_id] = time.monotonic() + _LISTENS_WITHIN_SECONDS
        self._started.set()

    async def hints(self, hint: Callable[[str], None], _resync: Callable[[], None]) -> None:
        """Say which workspace to look at, at the moment when its IDE begins to listen; for ever."""
        while True:
            await self._started.wait()
            for workspace_id, until in list(self._starting.items()):
                listens = os.path.lexists(self._directory(workspace_id).bound_socket)
                if listens:
                    hint(workspace_id)
                if listens or time.monotonic() > until:
                    del self._starting[workspace_id]
            if not self._starting:
                self._started.clear()
            await asyncio.sleep(_LISTENS_POLL_SECONDS)

    async def _launch(self, request: KeeperRequest, directory: StateDirectory) -> str:
        """The keeper's answer; `GONE` when a delete took the directory away under its hands, for one."""
        try:
            directory.path.mkdir(mode=0o700, exist_ok=True)
            return await _to_the_end(asyncio.to_thread(FORK_SERVER.start, request))
        except OSError as error:
            return str(error)

    def _check(self, spec: WorkloadSpec, directory: StateDirectory) -> None:
        if spec.image.process is None:
            message = (
                f"image {spec.image.name!r} has no 'process' command: the process runtime cannot start it"
            )
            raise RuntimeFailure(ErrorReason.ActionFailed, message)
        if os.geteuid() == 0 and not spec.uid:
            message = "under root a workspace needs a user id of its own, and it may not be root's"
            raise RuntimeFailure(ErrorReason.ActionFailed, message)
        if len(os.fsencode(directory.bound_socket)) > LONGEST_SOCKET_PATH:
            message = f"{directory.bound_socket} is too long for a Unix socket: use a shorter data directory"
            raise RuntimeFailure(ErrorReason.ActionFailed, message)
        if spec.home.is_symlink() or not spec.home.is_dir():
            message = f"the home {spec.home} is missing; a start does not make one"
            raise RuntimeFailure(ErrorReason.ContainerWithoutVolume, message)

    async def stop(self, workspace_id: str) -> None:
        directory = self._directory(workspace_id)
        try:
            look = await asyncio.to_thread(self._look_at, workspace_id)
        except Unobservable as error:
            raise RuntimeFailure(ErrorReason.Unreachable, error.message) from error
        if look is None:
            return
        for process in await asyncio.to_thread(_keepers, directory, look):
            process.send(signal.SIGTERM)
            if not await _ends(process, self._stop_grace + _KEEPER_GRACE_SECONDS):
                process.send(signal.SIGKILL)
                await _ends(process, _KEEPER_GRACE_SECONDS)
        try:
            await asyncio.to_thread(self._kill_stale_processes, directory, look.state)
        except (StaleProcessesAlive, OSError) as error:
            raise RuntimeFailure(ErrorReason.ActionFailed, str(error)) from error

    def _kill_stale_processes(self, directory: StateDirectory, state: State | None) -> None:
        groups = keeper_request_builder.group_directories(find_cgroups(), directory) if state is None else []
        kill_stale_processes(directory.path.name, state, Isolation.NONE.value, None, groups)

    async def delete(self, workspace_id: str) -> None:
        await self.stop(workspace_id)
        directory = self._directory(workspace_id)
        try:
            removed = await asyncio.to_thread(directory.remove)
        except OSError as error:
            raise RuntimeFailure(ErrorReason.ActionFailed, f"it cannot be removed: {error}") from error
        if not removed:
            message = "the container was started again while it was deleted"
            raise RuntimeFailure(ErrorReason.ActionFailed, message)

    async def upstream(self, workspace_id: str) -> str | None:
        look = await asyncio.to_thread(self._look_closely_at, workspace_id)
        return None if look is None else look.upstream

    async def status(self, workspace_id: str) -> ContainerFact:
        look = await asyncio.to_thread(self._look_closely_at, workspace_id)
        return ABSENT if look is None else await self._fact(workspace_id, look)

    async def observe(self) -> dict[str, ContainerFact | Unknown]:
        looks = await asyncio.to_thread(self._look_at_all)
        facts = await asyncio.gather(*(self._seen(name, look) for name, look in looks.items()))
        return dict(zip(looks, facts, strict=True))

    async def ping(self) -> None:
        if not await asyncio.to_thread(self._root.is_dir):
            raise Unobservable(f"{self._root} is missing: is its disk mounted?")

    async def logs(self, workspace_id: str, lines: int) -> str:
        return await asyncio.to_thread(self._directory(workspace_id).tail, lines)

    def _directory(self, workspace_id: str) -> StateDirectory:
        if not is_label_id(workspace_id):
            raise ValueError(f"{workspace_id!r} is no workspace id")
        return StateDirectory(self._root / workspace_id)

    def _look_at(self, workspace_id: str) -> _Look | None:
        if not self._root.is_dir():
            raise Unobservable(f"{self._root} is missing: is its disk mounted?")
        try:
            return _look(self._directory(workspace_id))
        except OSError as error:
            raise Unobservable(f"the runtime directory cannot be read: {error}") from error

    def _look_closely_at(self, workspace_id: str) -> _Look | None:
        """With where its IDE listens, which only a workspace that runs is asked for."""
        look = self._look_at(workspace_id)
        directory = self._directory(workspace_id)
        if look is None or look.state is None or not look.alive:
            return look
        if not directory.publish_socket(self._gateway_group):
            return look
        return replace(look, upstream=f"unix:{directory.socket}")

    def _look_at_all(self) -> dict[str, _Look | Unknown]:
        try:
            names = sorted(entry.name for entry in self._root.iterdir() if entry.is_dir())
        except OSError as error:
            raise Unobservable(f"the runtime directory cannot be read: {error}") from error
        looks = {name: self._look_if_possible(name) for name in names if is_label_id(name)}
        return {name: look for name, look in looks.items() if look is not None}

    def _look_if_possible(self, workspace_id: str) -> _Look | Unknown | None:
        try:
            return self._look_closely_at(workspace_id)
        except Unobservable as error:
            return Unknown(error.message)

    async def _seen(self, workspace_id: str, look: _Look | Unknown) -> ContainerFact | Unknown:
        return look if isinstance(look, Unknown) else await self._fact(workspace_id, look)

    async def _fact(self, workspace_id: str, look: _Look) -> ContainerFact:
        message = look.trouble
        ready = False
        if look.upstream is not None and look.state is not None:
            async with self._probes:
                reason = await why_not_ready(look.upstream, look.state.ready_path)
            ready, message = reason is None, reason or ""
        elif look.alive:
            message = message or "the IDE does not listen yet"
        elif look.state is not None:
            message = await asyncio.to_thread(_epitaph, self._directory(workspace_id), look.state)
        op_id = look.state.op_id if look.state is not None else None
        return ContainerFact(True, look.alive, ready, look.upstream, op_id, message)


def _look(directory: StateDirectory) -> _Look | None:
    try:
        state = directory.read_state()
    except StateCorrupted as error:
        return _Look(directory.is_locked(), None, str(error))
    if state is None:
        return _Look(True, None, "it is being started") if directory.is_locked() else None
    return _Look(state.is_alive(), state)


def _epitaph(directory: StateDirectory, state: State) -> str:
    """Why a container that exists does not run, with what it said last."""
    if state.boot_id != boot_id():
        return "it ended when the machine restarted"
    if state.ended is None:
        return "it was killed from outside"
    if state.ended.stopped:
        return "it was stopped"
    if state.ended.exhausted_memory is not None:
        return f"it ran out of memory ({_size(state.ended.exhausted_memory)}), exit code {state.ended.code}"
    output = output_excerpt(directory.last_output(_LINES_IN_MESSAGE))
    return f"it exited with code {state.ended.code}" + (f": {output}" if output else ", without a word")


def _size(count: int) -> str:
    return f"{count / (1 << 30):.3g} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.3g} MiB"


def _tell(barriers: IsolationBarriers) -> None:
    """Once, where the logs are: what a workspace is kept in, and what it is not."""
    logger.info("workspaces are kept apart by: %s", barriers.isolation)
    if barriers.slirp is None:
        logger.warning("workspaces are in this machine's own network: %s", barriers.why_no_network)
    if not barriers.seccomp:
        logger.warning("no system call of a workspace is denied: %s", barriers.why_no_seccomp)
    if barriers.cgroups.why_not_all:
        logger.warning("not all caps of workspaces can be kept: %s", barriers.cgroups.why_not_all)


def _keepers(directory: StateDirectory, look: _Look) -> list[ProcessId]:
    """Who keeps this directory; without a readable state, whoever says so on its command line."""
    if look.state is not None:
        keeper_process = look.state.keeper
        return [keeper_process] if look.state.is_alive() and keeper_process.is_alive() else []
    return processes_with_argument(str(directory.path))


async def _to_the_end(launch: Coroutine[Any, Any, str]) -> str:
    """Whoever is cancelled meanwhile holds the home until it is known what came of the launch, which nobody
    can call back: else it might happen on a newer home."""
    launching = asyncio.ensure_future(launch)
    try:
        return await asyncio.shield(launching)
    except asyncio.CancelledError:
        deadline = time.monotonic() + LAUNCH_WITHIN_SECONDS + _KEEPER_GRACE_SECONDS
        while not launching.done() and time.monotonic() < deadline:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([launching], timeout=deadline - time.monotonic())
        raise


async def _ends(process: ProcessId, within: float) -> bool:
    deadline = time.monotonic() + within
    while process.is_alive():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_POLL_SECONDS)
    return True
