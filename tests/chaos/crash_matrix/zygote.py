"""Coordinators and jobs without their start: a process that has loaded everything and becomes one.

It has no event loop, no thread and no connection, so that what it forks is as good as started anew. Each
request comes over a connection of its own, with the descriptors that the process is to inherit, and is
answered with the id of the process.
"""

import array
import asyncio
import ctypes
import gc
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import uvloop

from codehub import log
from codehub.coordinator import main, postgres_backend
from codehub.database import leadership
from codehub.database.controller_writes import PostgresLeaderDatabase
from codehub.domain.decision import Decision, TimelineEvent, changed_columns
from codehub.domain.observation import JobFact, JobState
from codehub.domain.workspace import Workspace
from codehub.runtimes.base import Runtime
from codehub.runtimes.process.runtime import ProcessRuntime
from codehub.settings import load
from codehub.storage.jobs import local_jobs, program
from codehub.storage.jobs.local_jobs import LocalJobs
from tests.chaos.crash_matrix import crashing_job
from tests.chaos.crash_matrix.plants import PLANTS
from tests.chaos.crash_matrix.steps import COORDINATOR, PIDS, Orders, Steps, kill

_PR_SET_PDEATHSIG = 1
MESSAGE = 1 << 16
TOLD_BESIDES = ("advance_last_access", "apply_expiry", "purge", "replace_orphans", "mark_archive_removed")
"""What a leader commits besides decisions about one workspace."""


def serve(path: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    while True:
        connection, _ = listener.accept()
        # Who asks may die before, while or after it does.
        with connection, suppress(ConnectionError):
            _answer(connection, listener)


def _answer(connection: socket.socket, listener: socket.socket) -> None:
    message, descriptors, _, _ = socket.recv_fds(connection, MESSAGE, 4)
    pid = os.fork() if message else 0
    if message and pid == 0:
        listener.close()
        with suppress(ConnectionError):
            connection.recv(1)  # until whoever asked has hold of this process, or is dead
        connection.close()
        _become(json.loads(message), descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    connection.sendall(str(pid).encode())


@contextmanager
def asked(path: str, request: Mapping[str, Any], descriptors: list[int]) -> Iterator[int]:
    """The id of the process that the zygote at this path has become; it begins when this ends."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        connection.sendmsg([json.dumps(request).encode()], [rights])
        yield int(connection.recv(64))


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """The first descriptor takes what the process says; the others are its own business."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.dup2(descriptors[0], 1)
        os.dup2(descriptors[0], 2)
        if "job" in request:
            code = _work(request, descriptors[1])
        else:
            _coordinate(request)
    except BaseException:  # noqa: BLE001 - told, and the process ends
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _work(request: dict[str, Any], lock: int) -> int:
    directory = Path(request["job"])
    # Where it works tells whose it is when everything is to end.
    os.chdir(directory)
    os.environ.update(request["environment"] | {program.LOCK_VARIABLE: str(lock)})
    _sow(request["plant"], directory.parent.parent)
    return crashing_job.main(directory)


def _sow(plant: str, data_dir: Path) -> None:
    if plant:
        PLANTS[plant].sow(data_dir)


class ForkedJobs(LocalJobs):
    """Jobs that need not be loaded: the same program in the same directory, with the same lock."""

    zygote = ""
    plant = ""
    steps: Steps | None = None

    def _spawn(self, directory: Path, lock: int) -> None:
        environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        request = {"job": str(directory), "environment": environment, "plant": self.plant}
        with (
            (directory / "log").open("ab") as log,
            self.steps.at("spawn the job") if self.steps else nullcontext(),
            asked(self.zygote, request, [log.fileno(), lock]),
        ):
            pass

    async def status(self, job_id: str) -> JobFact | None:
        """A job that waits to be adopted goes on when it has been seen alive."""
        fact = await super().status(job_id)
        waits = self._directory(job_id) / crashing_job.WAITS
        if fact is not None and fact.state is JobState.RUNNING and waits.exists():
            waits.unlink()
        return fact

    async def cancel(self, job_id: str) -> None:
        with self.steps.at("kill the job") if self.steps else nullcontext():
            await super().cancel(job_id)


def _is_forked_job(process: Path, directory: Path) -> bool:
    """Its command line is the zygote's, and no child's is; where it works tells which job it is."""
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
        return os.fsencode(ForkedJobs.zygote) in words and (process / "cwd").readlink() == directory
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False


def _coordinate(order: dict[str, Any]) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ.update(order["environment"])
    settings = load(**order["settings"])
    log.configure(COORDINATOR, settings.log_level)
    (settings.data_dir / PIDS[COORDINATOR]).write_text(str(os.getpid()))
    main._warm_up = _stay_cool
    if order["zygote"]:
        ForkedJobs.zygote, ForkedJobs.plant = order["zygote"], order["plant"]
        main.LocalJobs = ForkedJobs  # type: ignore[misc]
        local_jobs._is_job = _is_forked_job
    if order["orders"]:
        orders = Orders(**order["orders"])
        ForkedJobs.steps = Steps(orders, lambda: kill(Path(orders.root), orders.victims))
        watch(ForkedJobs.steps)
    _sow(order["plant"], settings.data_dir)
    uvloop.run(_run(settings))


async def _stay_cool(runtime: Runtime) -> None:
    """What the first start needs is made ready when it comes: most of these coordinators never start one."""
    assert isinstance(runtime, ProcessRuntime)
    await runtime.finish_removals()


async def _run(settings: Any) -> None:
    await main.run(settings, asyncio.Event())


def watch(steps: Steps) -> None:
    steps.watch_files()
    steps.watch_objects()
    _watch_office(steps)
    _watch_decisions(steps)
    for name in TOLD_BESIDES:
        _watch_method(steps, name)


def _watch_office(steps: Steps) -> None:
    real = leadership.campaign

    async def campaign(url: str, holder: str) -> leadership.PostgresTerm | None:
        with steps.at("take office"):
            return await real(url, holder)

    postgres_backend.leadership.campaign = campaign


def _watch_decisions(steps: Steps) -> None:
    real = PostgresLeaderDatabase.save

    async def save(
        self: PostgresLeaderDatabase, before: Workspace, decision: Decision, now: Any
    ) -> Workspace:
        if not decision.writes(before):
            return await real(self, before, decision, now)
        with steps.at(_name_of(before, decision)):
            return await real(self, before, decision, now)

    PostgresLeaderDatabase.save = save  # type: ignore[method-assign]


def _name_of(before: Workspace, decision: Decision) -> str:
    if decision.event is None:
        columns = sorted(changed_columns(before, decision.after).keys() - {"observed_at", "progress_at"})
        return f"commit {', '.join(columns)}"
    operation = decision.after if decision.event is TimelineEvent.CLAIMED else before
    return f"commit {decision.event.value} {operation.operation.value}"


def _watch_method(steps: Steps, name: str) -> None:
    real = getattr(PostgresLeaderDatabase, name)

    async def watched(self: PostgresLeaderDatabase, *args: Any) -> Any:
        with steps.at(f"commit {name}"):
            return await real(self, *args)

    setattr(PostgresLeaderDatabase, name, watched)


if __name__ == "__main__":
    serve(sys.argv[1])
