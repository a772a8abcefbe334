"""Fork server for coordinators and storage jobs, which saves them the import of their modules.

It has no event loop, thread or connection, so its forks behave like new processes. Each request
arrives on its own connection, with the file descriptors that the fork inherits. The answer is the
fork's process id.
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
from codehub.database.leader_database import PostgresLeaderDatabase
from codehub.domain.decision import Decision, TimelineEvent, changed_columns
from codehub.domain.observation import JobFact, JobState
from codehub.domain.workspace import Workspace
from codehub.runtimes.base import Runtime
from codehub.runtimes.process.runtime import ProcessRuntime
from codehub.settings import load
from codehub.storage.jobs import local_jobs, program
from codehub.storage.jobs.local_jobs import LocalJobs
from tests.chaos.crash_matrix import crashing_job
from tests.chaos.crash_matrix.planted_bugs import PLANTED_BUGS
from tests.chaos.crash_matrix.steps import COORDINATOR, PIDS, Instructions, Steps, kill

_PR_SET_PDEATHSIG = 1
MESSAGE = 1 << 16
OTHER_COMMITS = ("advance_last_access", "apply_expiry", "purge", "replace_orphans", "mark_archive_removed")
"""Methods with which a leader commits anything but a decision about one workspace."""


def serve(path: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    while True:
        connection, _ = listener.accept()
        # The client may die at any moment.
        with connection, suppress(ConnectionError):
            _answer(connection, listener)


def _answer(connection: socket.socket, listener: socket.socket) -> None:
    message, descriptors, _, _ = socket.recv_fds(connection, MESSAGE, 4)
    pid = os.fork() if message else 0
    if message and pid == 0:
        listener.close()
        with suppress(ConnectionError):
            connection.recv(1)  # until the client has opened a pidfd of this process, or is dead
        connection.close()
        _run_child(json.loads(message), descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    connection.sendall(str(pid).encode())


@contextmanager
def request_fork(path: str, request: Mapping[str, Any], descriptors: list[int]) -> Iterator[int]:
    """Yield the process id of a fork by the server at this path.

    The fork starts when the block ends.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        connection.sendmsg([json.dumps(request).encode()], [rights])
        yield int(connection.recv(64))


def _run_child(request: dict[str, Any], descriptors: list[int]) -> None:
    """Become a job or a coordinator, with stdout and stderr on the first descriptor."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.dup2(descriptors[0], 1)
        os.dup2(descriptors[0], 2)
        if "job" in request:
            code = _run_job(request, descriptors[1])
        else:
            _run_coordinator(request)
    except BaseException:  # noqa: BLE001 - printed, and the process ends
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _run_job(request: dict[str, Any], lock: int) -> int:
    directory = Path(request["job"])
    # `kill_processes_of` finds the process by its working directory.
    os.chdir(directory)
    os.environ.update(request["environment"] | {program.LOCK_VARIABLE: str(lock)})
    _install_bug(request["planted_bug"], directory.parent.parent)
    return crashing_job.main(directory)


def _install_bug(planted_bug: str, data_dir: Path) -> None:
    if planted_bug:
        PLANTED_BUGS[planted_bug].install(data_dir)


class ForkedJobs(LocalJobs):
    """LocalJobs that forks the job's program instead of starting Python for it."""

    fork_server = ""
    planted_bug = ""
    steps: Steps | None = None

    def _spawn(self, directory: Path, lock: int) -> None:
        environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        request = {"job": str(directory), "environment": environment, "planted_bug": self.planted_bug}
        with (
            (directory / "log").open("ab") as log,
            self.steps.at("spawn the job") if self.steps else nullcontext(),
            request_fork(self.fork_server, request, [log.fileno(), lock]),
        ):
            pass

    async def status(self, job_id: str) -> JobFact | None:
        """Return the job's state, and let a job that waits for adoption continue."""
        fact = await super().status(job_id)
        waiting = self._directory(job_id) / crashing_job.WAITING
        if fact is not None and fact.state is JobState.RUNNING and waiting.exists():
            waiting.unlink()
        return fact

    async def cancel(self, job_id: str) -> None:
        with self.steps.at("kill the job") if self.steps else nullcontext():
            await super().cancel(job_id)


def _is_forked_job(process: Path, directory: Path) -> bool:
    """Return whether the process is a fork of the server and its working directory is this one."""
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
        return os.fsencode(ForkedJobs.fork_server) in words and (process / "cwd").readlink() == directory
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False


def _run_coordinator(request: dict[str, Any]) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ.update(request["environment"])
    settings = load(**request["settings"])
    log.configure(COORDINATOR, settings.log_level)
    (settings.data_dir / PIDS[COORDINATOR]).write_text(str(os.getpid()))
    main._warm_up = _skip_warm_up
    if request["fork_server"]:
        ForkedJobs.fork_server, ForkedJobs.planted_bug = request["fork_server"], request["planted_bug"]
        main.LocalJobs = ForkedJobs  # type: ignore[misc]
        local_jobs._is_job = _is_forked_job
    if request["instructions"]:
        instructions = Instructions(**request["instructions"])
        ForkedJobs.steps = Steps(instructions, lambda: kill(Path(instructions.root), instructions.victims))
        watch(ForkedJobs.steps)
    _install_bug(request["planted_bug"], settings.data_dir)
    uvloop.run(_run(settings))


async def _skip_warm_up(runtime: Runtime) -> None:
    """Replace the warm-up: most of these coordinators never start a container."""
    assert isinstance(runtime, ProcessRuntime)
    await runtime.finish_removals()


async def _run(settings: Any) -> None:
    await main.run(settings, asyncio.Event())


def watch(steps: Steps) -> None:
    steps.watch_files()
    steps.watch_objects()
    _watch_election(steps)
    _watch_decisions(steps)
    for name in OTHER_COMMITS:
        _watch_method(steps, name)


def _watch_election(steps: Steps) -> None:
    real = leadership.campaign

    async def campaign(url: str, holder: str) -> leadership.PostgresTerm | None:
        with steps.at("become leader"):
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
