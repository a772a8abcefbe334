"""Runner of storage jobs on this machine, as processes that outlive the coordinator (ADR 0003).

A job is running if and only if its lock is held.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import codehub
from codehub.domain.ids import is_path_id
from codehub.domain.observation import JobFact, JobState
from codehub.host.durable_files import fsync_path, make_directory, read_if_there, write_durably
from codehub.host.file_lock import is_locked, lock_within
from codehub.storage.errors import JobIsRunning, TooManyArchives
from codehub.storage.ids import checked_id
from codehub.storage.jobs.program import LOCK, LOCK_VARIABLE, SPEC
from codehub.storage.jobs.report import clear_progress, has_result, read_ended, read_progress
from codehub.storage.jobs.spec import ArchiveJob, JobSpec, dump_spec

_PASSED_VARIABLES = ("PATH", "TMPDIR", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTPS_PROXY", "NO_PROXY")
_FORGOTTEN = ".forgotten-"

PROGRAM = "codehub.storage.jobs.program"
# A job that was started before an upgrade goes on under the module's former name.
_PROGRAMS = frozenset({PROGRAM.encode(), b"codehub.storage.job"})

# A status check holds a job's lock for an instant; the job itself holds it longer.
_LOCK_WAIT = 0.2
_KILL_WAIT = 30.0
_KILL_PAUSE = 0.02


class LocalJobs:
    """Job runner with one process per job, and one directory per job below `jobs_dir`."""

    def __init__(self, jobs_dir: Path, archives_at_once: int | None = None) -> None:
        self._jobs_dir = jobs_dir
        self._archives_at_once = archives_at_once
        self._starting = threading.Lock()
        _finish_forgetting(jobs_dir)

    async def start(self, job_id: str, spec: JobSpec) -> bool:
        """Start a job, unless it is running or has ended. A job that was killed is started again.

        Return False if this call did not start it: an earlier leader's job may be running.

        Raise TooManyArchives for an archive above the limit: a hundred workspaces that become idle
        at once would take all memory. Restores have no limit, because a user waits for them.
        """
        return await asyncio.to_thread(self._start, self._directory(job_id), spec)

    async def status(self, job_id: str) -> JobFact | None:
        """Return the state of a job, or None if it was never started."""
        return await asyncio.to_thread(_status, self._directory(job_id))

    async def cancel(self, job_id: str) -> None:
        """Kill a job, and return once it and its children are dead."""
        await asyncio.to_thread(_cancel, self._directory(job_id))

    async def forget(self, job_id: str) -> None:
        """Remove the directory of a job that has ended."""
        await asyncio.to_thread(self._forget, self._directory(job_id))

    async def list(self) -> "list[str]":
        """Return every job that has a directory, even if its start was interrupted."""
        return await asyncio.to_thread(_job_ids, self._jobs_dir)

    def _directory(self, job_id: str) -> Path:
        return self._jobs_dir / checked_id(job_id)

    def _start(self, directory: Path, spec: JobSpec) -> bool:
        if self._archives_at_once is None or not isinstance(spec, ArchiveJob):
            return self._start_now(directory, spec)
        with self._starting:
            if _running_archives(self._jobs_dir, excluding=directory) >= self._archives_at_once:
                raise TooManyArchives(f"{self._archives_at_once} archives are being made: this one waits")
            return self._start_now(directory, spec)

    def _start_now(self, directory: Path, spec: JobSpec) -> bool:
        make_directory(directory, 0o700)
        lock = lock_within(directory / LOCK, _LOCK_WAIT)
        if lock is None:
            return False
        try:
            if has_result(directory):
                return False
            clear_progress(directory)
            write_durably(directory / SPEC, dump_spec(spec))
            self._spawn(directory, lock)
            return True
        finally:
            os.close(lock)

    def _spawn(self, directory: Path, lock: int) -> None:
        """Spawn a job that inherits the lock, which is therefore held without a gap."""
        with (directory / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", PROGRAM, str(directory)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=job_environment() | {LOCK_VARIABLE: str(lock)},
                start_new_session=True,
                pass_fds=(lock,),
            )
        threading.Thread(target=process.wait, name=f"reap-{process.pid}", daemon=True).start()

    def _forget(self, directory: Path) -> None:
        if not directory.exists():
            return
        lock = lock_within(directory / LOCK, _LOCK_WAIT)
        if lock is None:
            raise JobIsRunning(f"job {directory.name} still runs")
        try:
            # Hide it in one step, so that no job starts in a directory that is half removed.
            forgotten = directory.with_name(f"{_FORGOTTEN}{directory.name}-{time.monotonic_ns()}")
            directory.rename(forgotten)
            fsync_path(self._jobs_dir)
            shutil.rmtree(forgotten)
        finally:
            os.close(lock)


def _finish_forgetting(jobs_dir: Path) -> None:
    """Remove what a crash left of forgotten jobs, which are not listed."""
    for forgotten in jobs_dir.glob(f"{_FORGOTTEN}*"):
        shutil.rmtree(forgotten, ignore_errors=True)


def _running_archives(jobs_dir: Path, excluding: Path) -> int:
    mark = b'"kind": "%b"' % ArchiveJob.kind.encode()
    specs = [path for path in jobs_dir.glob(f"[!.]*/{SPEC}") if path.parent != excluding]
    return sum(is_locked(path.parent / LOCK) and mark in (read_if_there(path) or b"") for path in specs)


def _job_ids(jobs_dir: Path) -> list[str]:
    paths = [path for path in jobs_dir.glob("*") if is_path_id(path.name)]
    return sorted(path.name for path in paths if _is_job_directory(path))


def _is_job_directory(directory: Path) -> bool:
    """Return whether a directory has a job's lock, or is empty after an interrupted start."""
    try:
        return (directory / LOCK).exists() or not any(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False


def job_environment() -> dict[str, str]:
    """Return the environment of a job: it has the credentials of the store, not the database's."""
    passed = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("AWS_") or name.upper() in _PASSED_VARIABLES
    }
    return passed | {"PYTHONPATH": str(Path(codehub.__file__).parent.parent), "PYTHONUNBUFFERED": "1"}


def _status(directory: Path) -> JobFact | None:
    if not (directory / SPEC).exists():
        return None
    if is_locked(directory / LOCK):
        return JobFact(JobState.RUNNING, read_progress(directory), None, "")
    return read_ended(directory)


def _cancel(directory: Path) -> None:
    deadline = time.monotonic() + _KILL_WAIT
    while is_locked(directory / LOCK):
        if time.monotonic() > deadline:
            raise JobIsRunning(f"job {directory.name} does not end: is a disk hanging?")
        for pid in _processes_of(directory):
            _kill(pid, directory)
        time.sleep(_KILL_PAUSE)


def _processes_of(directory: Path) -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if _is_job(path, directory)]


def _is_job(process: Path, directory: Path) -> bool:
    try:
        arguments = (process / "cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return not _PROGRAMS.isdisjoint(arguments) and os.fsencode(directory) in arguments


def _kill(pid: int, directory: Path) -> None:
    """Kill a job's process, but not another one that has been given its pid meanwhile."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if _is_job(Path(f"/proc/{pid}"), directory):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)
