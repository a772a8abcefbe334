"""The process runtime: a container is a sandboxed tree of processes (ADR 0011)."""

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
from codehub.domain.resource_usage import ResourceUsage
from codehub.domain.states import ErrorReason
from codehub.host.processes import ProcessId, boot_id, processes_with_argument
from codehub.runtimes import recorded_commands
from codehub.runtimes.base import ABSENT, RuntimeFailure, RuntimeUnobservable, WorkloadSpec, output_excerpt
from codehub.runtimes.egress import DEFAULT_EGRESS, Egress
from codehub.runtimes.process import cgroups, keeper, keeper_request_builder, resource_usage
from codehub.runtimes.process.barrier_detection import find_barriers
from codehub.runtimes.process.cgroup_caps import find_cgroups
from codehub.runtimes.process.commands import ProcessCommands
from codehub.runtimes.process.forkserver_client import FORK_SERVER
from codehub.runtimes.process.keeper_request import LAUNCH_WITHIN_SECONDS, KeeperRequest
from codehub.runtimes.process.keeper_request_builder import RuntimeConfig
from codehub.runtimes.process.sandbox import IsolationBarriers
from codehub.runtimes.process.stale_processes import Isolation, StaleProcessesAlive, kill_stale_processes
from codehub.runtimes.process.state_directory import (
    LONGEST_SOCKET_PATH,
    KeeperState,
    StateCorrupted,
    StateDirectory,
    unfinished_removals,
)
from codehub.runtimes.readiness import why_not_ready

logger = structlog.get_logger(__name__)

STOP_GRACE_SECONDS = 10.0
_KEEPER_GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.02
_LISTEN_POLL_SECONDS = 0.01
_LISTEN_TIMEOUT_SECONDS = 60.0
_MAX_READINESS_CHECKS = 32
_ORPHANED_GROUP_SECONDS = 3600.0
_LINES_IN_MESSAGE = 5


@dataclass(frozen=True)
class _Snapshot:
    """A container as its state directory describes it, before the readiness check."""

    alive: bool
    state: KeeperState | None
    error: str = ""
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
        access_group: int | None = None,
    ) -> None:
        self._root = root.absolute()
        self._config = RuntimeConfig(
            tools.absolute(), self._root.parent, egress, stop_grace, port_links, secrets, gateway_group
        )
        self._gateway_group = gateway_group
        self._insecure = insecure
        self._stop_grace = stop_grace
        self._barriers: IsolationBarriers | None = None
        self._probe_lock = asyncio.Lock()
        self._readiness_checks = asyncio.Semaphore(_MAX_READINESS_CHECKS)
        self._starting: dict[str, float] = {}
        """Workspaces whose IDE may not listen yet, with the time when to stop waiting for it."""
        self._started = asyncio.Event()
        self._root.mkdir(mode=0o711, parents=True, exist_ok=True)
        self.commands = ProcessCommands(self._root.parent / recorded_commands.DIRECTORY)
        self.commands.prepare(access_group)

    async def barriers(self) -> IsolationBarriers:
        """Return the barriers between workspaces.

        Fail if there are none and that was not accepted.
        """
        async with self._probe_lock:
            if self._barriers is None:
                self._barriers = await find_barriers()
        if os.geteuid() == 0 and self._barriers.setpriv is None:
            message = "setpriv is missing, and without it a workspace would run as root: install util-linux"
            raise RuntimeFailure(ErrorReason.ActionFailed, message)
        if self._barriers.isolation is Isolation.NONE and not self._insecure:
            raise RuntimeFailure(
                ErrorReason.ActionFailed,
                "this machine cannot isolate workspaces from each other: CodeHub does not run as root, and "
                f"{self._barriers.why_not_better}. Every workspace could read and change every other one. "
                "Fix that, or accept it with --insecure-process-runtime",
            )
        return self._barriers

    async def close(self) -> None:
        """Keepers are independent processes, so there is nothing to release."""

    async def warm_up(self) -> None:
        """Do what the first start would wait for.

        An error is only logged: the start will raise it.
        """
        try:
            barriers = await self.barriers()
            _log_barriers(barriers)
            await asyncio.to_thread(FORK_SERVER.warm_up)
            await asyncio.to_thread(cgroups.sweep, barriers.cgroups.every_parent, _ORPHANED_GROUP_SECONDS)
        except (RuntimeFailure, OSError) as error:
            logger.warning("no workspace can be started here", error=str(error))

    async def finish_removals(self) -> None:
        """Finish removals that a crash interrupted.

        One that is still running holds its lock and is skipped.
        """
        for directory in await asyncio.to_thread(unfinished_removals, self._root):
            try:
                await asyncio.to_thread(directory.remove)
            except OSError as error:
                logger.warning("a directory cannot be removed", path=str(directory.path), error=str(error))

    def share_sockets(self) -> None:
        """Give the gateway's group the sockets of workspaces from when the gateway ran as root."""
        if self._gateway_group is None:
            return
        for path in self._root.iterdir():
            if not is_label_id(path.name) or not path.is_dir():
                continue
            try:
                StateDirectory(path).share_sockets(self._gateway_group)
            except OSError as error:
                logger.warning("the gateway cannot reach a workspace", path=str(path), error=str(error))

    async def start(self, spec: WorkloadSpec) -> None:
        barriers = await self.barriers()
        directory = self._directory(spec.workspace_id)
        self._check(spec, directory)
        request = await asyncio.to_thread(
            keeper_request_builder.build_request, spec, barriers, directory, self._config
        )
        report = keeper.GONE
        for _ in range(3):
            if report == keeper.GONE:
                report = await self._launch(request, directory)
        if report not in (keeper.STARTED, keeper.ALREADY_RUNNING):
            message = f"the container did not start: {output_excerpt(report)}"
            raise RuntimeFailure(ErrorReason.ActionFailed, message)
        self._starting[spec.workspace_id] = time.monotonic() + _LISTEN_TIMEOUT_SECONDS
        self._started.set()

    async def hints(self, hint: Callable[[str], None], _resync: Callable[[], None]) -> None:
        """Call `hint` with a workspace as soon as its IDE starts to listen.

        Runs until it is cancelled.
        """
        while True:
            await self._started.wait()
            for workspace_id, until in list(self._starting.items()):
                is_listening = os.path.lexists(self._directory(workspace_id).bound_socket)
                if is_listening:
                    hint(workspace_id)
                if is_listening or time.monotonic() > until:
                    del self._starting[workspace_id]
            if not self._starting:
                self._started.clear()
            await asyncio.sleep(_LISTEN_POLL_SECONDS)

    async def _launch(self, request: KeeperRequest, directory: StateDirectory) -> str:
        """Return the keeper's report.

        It is `GONE` if, for example, a delete removed the directory meanwhile.
        """
        try:
            directory.path.mkdir(mode=0o700, exist_ok=True)
            return await _finish_launch(asyncio.to_thread(FORK_SERVER.start, request))
        except OSError as error:
            return str(error)

    def _check(self, spec: WorkloadSpec, directory: StateDirectory) -> None:
        if spec.image.process is None:
            message = (
                f"image {spec.image.name!r} has no 'process' command: the process runtime cannot start it"
            )
            raise RuntimeFailure(ErrorReason.ActionFailed, message)
        if os.geteuid() == 0 and not spec.uid:
            message = "under root a workspace needs its own user id, and it must not be 0"
            raise RuntimeFailure(ErrorReason.ActionFailed, message)
        if len(os.fsencode(directory.bound_socket)) > LONGEST_SOCKET_PATH:
            message = f"{directory.bound_socket} is too long for a Unix socket: use a shorter data directory"
            raise RuntimeFailure(ErrorReason.ActionFailed, message)
        if spec.home.is_symlink() or not spec.home.is_dir():
            message = f"the home {spec.home} is missing, and a start does not create one"
            raise RuntimeFailure(ErrorReason.ContainerWithoutVolume, message)

    async def stop(self, workspace_id: str) -> None:
        directory = self._directory(workspace_id)
        try:
            snapshot = await asyncio.to_thread(self._read_snapshot, workspace_id)
        except RuntimeUnobservable as error:
            raise RuntimeFailure(ErrorReason.Unreachable, error.message) from error
        if snapshot is None:
            return
        for process in await asyncio.to_thread(_find_keepers, directory, snapshot):
            process.send(signal.SIGTERM)
            within = keeper.longest_stop(self._stop_grace) + _KEEPER_GRACE_SECONDS
            if not await _wait_until_dead(process, within):
                process.send(signal.SIGKILL)
                await _wait_until_dead(process, _KEEPER_GRACE_SECONDS)
        try:
            await asyncio.to_thread(self._kill_stale_processes, directory, snapshot.state)
        except (StaleProcessesAlive, OSError) as error:
            raise RuntimeFailure(ErrorReason.ActionFailed, str(error)) from error

    def _kill_stale_processes(self, directory: StateDirectory, state: KeeperState | None) -> None:
        groups = keeper_request_builder.group_directories(find_cgroups(), directory) if state is None else []
        kill_stale_processes(directory.path.name, state, Isolation.NONE.value, None, groups)

    async def delete(self, workspace_id: str) -> None:
        await self.stop(workspace_id)
        directory = self._directory(workspace_id)
        try:
            removed = await asyncio.to_thread(directory.remove)
        except OSError as error:
            raise RuntimeFailure(
                ErrorReason.ActionFailed, f"the container cannot be removed: {error}"
            ) from error
        if not removed:
            message = "the container was started again while it was being deleted"
            raise RuntimeFailure(ErrorReason.ActionFailed, message)

    async def upstream(self, workspace_id: str) -> str | None:
        snapshot = await asyncio.to_thread(self._publish_and_read, workspace_id)
        return None if snapshot is None else snapshot.upstream

    async def status(self, workspace_id: str) -> ContainerFact:
        snapshot = await asyncio.to_thread(self._publish_and_read, workspace_id)
        return ABSENT if snapshot is None else await self._fact(workspace_id, snapshot)

    async def observe(self) -> dict[str, ContainerFact | Unknown]:
        snapshots = await asyncio.to_thread(self._read_all)
        facts = await asyncio.gather(*(self._fact_if_known(name, found) for name, found in snapshots.items()))
        return dict(zip(snapshots, facts, strict=True))

    async def resource_usage(
        self, workspace_ids: Sequence[str], within: float
    ) -> dict[str, ResourceUsage | Unknown]:
        return await asyncio.to_thread(self._resource_usage, workspace_ids, within)

    def _resource_usage(
        self, workspace_ids: Sequence[str], within: float
    ) -> dict[str, ResourceUsage | Unknown]:
        found: dict[str, ResourceUsage | Unknown] = {}
        states: dict[str, KeeperState] = {}
        for workspace_id in workspace_ids:
            try:
                snapshot = self._read_snapshot(workspace_id)
            except RuntimeUnobservable as error:
                found[workspace_id] = Unknown(error.message)
                continue
            if snapshot is not None and snapshot.alive and snapshot.state is not None:
                states[workspace_id] = snapshot.state
        return found | resource_usage.measure(states, within)

    async def ping(self) -> None:
        if not await asyncio.to_thread(self._root.is_dir):
            raise RuntimeUnobservable(f"{self._root} is missing: is its disk mounted?")

    async def logs(self, workspace_id: str, lines: int) -> str:
        return await asyncio.to_thread(self._directory(workspace_id).tail, lines)

    def _directory(self, workspace_id: str) -> StateDirectory:
        if not is_label_id(workspace_id):
            raise ValueError(f"{workspace_id!r} is not a workspace id")
        return StateDirectory(self._root / workspace_id)

    def _read_snapshot(self, workspace_id: str) -> _Snapshot | None:
        if not self._root.is_dir():
            raise RuntimeUnobservable(f"{self._root} is missing: is its disk mounted?")
        try:
            return _snapshot_of(self._directory(workspace_id))
        except OSError as error:
            raise RuntimeUnobservable(f"the runtime directory cannot be read: {error}") from error

    def _publish_and_read(self, workspace_id: str) -> _Snapshot | None:
        """Publish the socket of a running IDE, and return the snapshot with its address."""
        snapshot = self._read_snapshot(workspace_id)
        directory = self._directory(workspace_id)
        if snapshot is None or snapshot.state is None or not snapshot.alive:
            return snapshot
        if not directory.publish_socket(self._gateway_group):
            return snapshot
        return replace(snapshot, upstream=f"unix:{directory.socket}")

    def _read_all(self) -> dict[str, _Snapshot | Unknown]:
        try:
            names = sorted(entry.name for entry in self._root.iterdir() if entry.is_dir())
        except OSError as error:
            raise RuntimeUnobservable(f"the runtime directory cannot be read: {error}") from error
        snapshots = {name: self._read_or_unknown(name) for name in names if is_label_id(name)}
        return {name: snapshot for name, snapshot in snapshots.items() if snapshot is not None}

    def _read_or_unknown(self, workspace_id: str) -> _Snapshot | Unknown | None:
        try:
            return self._publish_and_read(workspace_id)
        except RuntimeUnobservable as error:
            return Unknown(error.message)

    async def _fact_if_known(self, workspace_id: str, found: _Snapshot | Unknown) -> ContainerFact | Unknown:
        return found if isinstance(found, Unknown) else await self._fact(workspace_id, found)

    async def _fact(self, workspace_id: str, snapshot: _Snapshot) -> ContainerFact:
        message = snapshot.error
        ready = False
        if snapshot.upstream is not None and snapshot.state is not None:
            async with self._readiness_checks:
                reason = await why_not_ready(snapshot.upstream, snapshot.state.ready_path)
            ready, message = reason is None, reason or ""
        elif snapshot.alive:
            message = message or "the IDE is not listening yet"
        elif snapshot.state is not None:
            message = await asyncio.to_thread(_exit_message, self._directory(workspace_id), snapshot.state)
        op_id = snapshot.state.op_id if snapshot.state is not None else None
        return ContainerFact(True, snapshot.alive, ready, snapshot.upstream, op_id, message)


def _snapshot_of(directory: StateDirectory) -> _Snapshot | None:
    try:
        state = directory.read_state()
    except StateCorrupted as error:
        return _Snapshot(directory.is_locked(), None, str(error))
    if state is None:
        return _Snapshot(True, None, "it is starting") if directory.is_locked() else None
    return _Snapshot(state.is_alive(), state)


def _exit_message(directory: StateDirectory, state: KeeperState) -> str:
    """Return why an existing container does not run, with the end of its output."""
    if state.boot_id != boot_id():
        return "it ended when the machine restarted"
    if state.ended is None:
        return "it was killed from outside"
    if state.ended.stopped:
        return "it was stopped"
    if state.ended.exhausted_memory is not None:
        return f"it ran out of memory ({_size(state.ended.exhausted_memory)}), exit code {state.ended.code}"
    output = output_excerpt(directory.last_output(_LINES_IN_MESSAGE))
    return f"it exited with code {state.ended.code}" + (f": {output}" if output else ", with no output")


def _size(count: int) -> str:
    return f"{count / (1 << 30):.3g} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.3g} MiB"


def _log_barriers(barriers: IsolationBarriers) -> None:
    """Log which barriers are in place and which are missing."""
    logger.info("isolation of workspaces", by=barriers.isolation.value)
    if barriers.slirp is None:
        logger.warning("workspaces are in this machine's network", reason=barriers.why_no_network)
    if not barriers.seccomp:
        logger.warning("workspaces may make all system calls", reason=barriers.why_no_seccomp)
    if barriers.cgroups.why_not_all:
        logger.warning("not all caps of workspaces can be set", reason=barriers.cgroups.why_not_all)


def _find_keepers(directory: StateDirectory, snapshot: _Snapshot) -> list[ProcessId]:
    """Return the keeper of a directory.

    If the state is not readable, find it by its command line.
    """
    if snapshot.state is not None:
        keeper_process = snapshot.state.keeper
        return [keeper_process] if snapshot.state.is_alive() and keeper_process.is_alive() else []
    return processes_with_argument(str(directory.path))


async def _finish_launch(launch: Coroutine[Any, Any, str]) -> str:
    """Wait for the launch, even after a cancellation.

    A launch cannot be revoked. If the caller released the home earlier, the launch could hit a
    newer home.
    """
    launching = asyncio.ensure_future(launch)
    try:
        return await asyncio.shield(launching)
    except asyncio.CancelledError:
        deadline = time.monotonic() + LAUNCH_WITHIN_SECONDS + _KEEPER_GRACE_SECONDS
        while not launching.done() and time.monotonic() < deadline:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([launching], timeout=deadline - time.monotonic())
        raise


async def _wait_until_dead(process: ProcessId, within: float) -> bool:
    deadline = time.monotonic() + within
    while process.is_alive():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_POLL_SECONDS)
    return True
