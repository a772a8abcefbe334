"""Supervisor of `codehub up`: it restarts parts that die, and ends all parts in order."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import structlog

from codehub.cli.errors import CommandError
from codehub.cli.part_processes import ForkedProcess
from codehub.embedded import server_processes
from codehub.embedded.server_account import EmbeddedError
from codehub.host.atomic_files import replace_file
from codehub.host.processes import ProcessId, boot_id

logger = structlog.get_logger(__name__)

STEADY_SECONDS = 60.0  # after a run of this length, the back-off begins from its start
MAX_BACKOFF = 30.0
MAX_LOG_BYTES = 20 << 20
LOG_CHECK_SECONDS = 60.0


class Service(Protocol):
    """A process that can be started again after it died."""

    name: str
    log_file: Path

    @property
    def process(self) -> ForkedProcess | subprocess.Popen[bytes] | None: ...

    async def start(self) -> None: ...

    def stop(self) -> None: ...


@runtime_checkable
class ReportsExitCause(Protocol):
    """A service whose log says why it ended."""

    def exit_cause(self) -> str | None: ...


class Supervisor:
    """Services, which start in order and end in the reverse order."""

    def __init__(self, run_dir: Path) -> None:
        self._children_file = run_dir / "children.json"
        self._services: list[Service] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, service: Service) -> None:
        self._services.append(service)
        await service.start()
        self._record()

    def raise_if_any_ended(self) -> None:
        """Raise CommandError if a service has ended. During the start, a restart would not help."""
        for service in self._services:
            if service.process is not None and service.process.poll() is not None:
                cause = _exit_cause(service)
                raise CommandError(
                    (f"{cause}\n" if cause else "")
                    + f"{service.name} ended with exit code {service.process.returncode} while it started; "
                    f"its log {service.log_file} ends with:\n{server_processes.tail(service.log_file)}"
                )

    def restart_dead_services(self) -> None:
        """Restart each service that dies, from now on."""
        self._tasks += [asyncio.create_task(self._restart_when_dead(service)) for service in self._services]
        self._tasks.append(asyncio.create_task(self._truncate_large_logs()))

    def run_in_background(self, work: Coroutine[None, None, None]) -> None:
        """Run a task of the supervisor itself until it stops."""
        self._tasks.append(asyncio.create_task(work))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for service in reversed(self._services):
            logger.info("stopping", part=service.name)
            service.stop()
        self._children_file.unlink(missing_ok=True)

    async def _restart_when_dead(self, service: Service) -> None:
        failures = 0
        while True:
            started = time.monotonic()
            code = await _wait_for_exit(service)
            failures = 1 if time.monotonic() - started > STEADY_SECONDS else failures + 1
            pause = min(0.25 * 2 ** (failures - 1), MAX_BACKOFF)
            details = {} if (cause := _exit_cause(service)) is None else {"cause": cause}
            logger.error("a part died", part=service.name, exit_code=code, again_in_seconds=pause, **details)
            await asyncio.sleep(pause)
            try:
                await service.start()
                self._record()
            except EmbeddedError as error:
                logger.error("a part does not start", part=service.name, error=str(error))
            except Exception as error:  # noqa: BLE001 - whatever the error, try again
                logger.error("a part does not start", part=service.name, error=repr(error))

    async def _truncate_large_logs(self) -> None:
        """Truncate logs that have grown.

        The parts append to them, so they need not reopen the files.
        """
        while True:
            await asyncio.sleep(LOG_CHECK_SECONDS)
            for path in {service.log_file for service in self._services}:
                try:
                    _truncate_if_large(path)
                except OSError as error:
                    logger.error("a log cannot be truncated", path=str(path), error=str(error))

    def _record(self) -> None:
        """Record the running processes, for the next start after a SIGKILL of this process."""
        boot = boot_id()
        children = {
            service.name: {"pid": process.pid, "birth": process.started, "boot": boot}
            for service in self._services
            if service.process is not None
            and service.process.poll() is None
            and (process := ProcessId.of(service.process.pid)) is not None
        }
        staged = self._children_file.with_suffix(".new")
        replace_file(self._children_file, json.dumps(children).encode(), staged=staged, mode=0o644)


def _exit_cause(service: Service) -> str | None:
    return service.exit_cause() if isinstance(service, ReportsExitCause) else None


def _truncate_if_large(log_file: Path) -> None:
    """Truncate a large log, after a copy of it was made.

    On a full disk, truncate it without a copy.
    """
    if not log_file.exists() or log_file.stat().st_size <= MAX_LOG_BYTES:
        return
    try:
        shutil.copyfile(log_file, log_file.with_suffix(".log.1"))
    finally:
        os.truncate(log_file, 0)


async def _wait_for_exit(service: Service) -> int | None:
    """Wait until the process of a service ends; return its exit code."""
    child = service.process
    if child is None or child.poll() is not None:
        return None if child is None else child.returncode
    descriptor = child.pidfd() if isinstance(child, ForkedProcess) else os.pidfd_open(child.pid)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return child.wait()


def end_stale_processes(run_dir: Path, names: Sequence[str]) -> None:
    """End the processes that a killed `up` has left.

    The kernel has signalled them, but they may be slow. Process ids of an earlier boot belong to
    other processes. An entry without a boot may be of any boot.
    """
    try:
        children = json.loads((run_dir / "children.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return
    boot = boot_id()
    recorded = [
        ProcessId(entry["pid"], entry["birth"])
        for name, entry in children.items()
        if name in names and entry.get("boot") == boot
    ]

    def alive() -> list[int]:
        return [process.pid for process in recorded if process.is_alive()]

    if alive() and not server_processes.end_processes(alive, [(signal.SIGTERM, 20), (signal.SIGKILL, 5)]):
        raise CommandError(f"processes {alive()} of an earlier start do not end")
    with contextlib.suppress(FileNotFoundError):
        (run_dir / "children.json").unlink()
