"""The storage job: `python -m codehub.storage.jobs.program {jobs_dir}/{job_id}`.

A separate, stateless, crash-only program. It knows no database and survives whoever started it. It holds a
lock in its own directory for its life, which proves that it runs, and the workspace's lock while it works.
"""

import ctypes
import os
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from codehub.domain.states import ErrorReason
from codehub.host.file_lock import is_file_at, try_lock
from codehub.storage.errors import HomeChanged, StaleEpoch, StorageProblem
from codehub.storage.jobs.report import Reporter, Result, has_result, keep_room, write_result
from codehub.storage.jobs.spec import JobSpec, load_spec
from codehub.storage.jobs.work import JobContext, run_job

LOCK = "lock"
SPEC = "spec.json"
LOCK_VARIABLE = "CODEHUB_JOB_LOCK_FD"

_PAUSES = (0.5, 2.0)
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3

EXIT_DONE, EXIT_FAILED, EXIT_RUNNING = 0, 1, 3


def main(arguments: list[str]) -> int:
    _reuse_memory()
    _work_in_batches()
    if len(arguments) != 1:
        print("usage: python -m codehub.storage.jobs.program JOB_DIRECTORY", file=sys.stderr)
        return 2
    directory = Path(arguments[0])
    lock = _own_lock(directory)
    if lock is None:
        print("this job is already running", file=sys.stderr)
        return EXIT_RUNNING
    if has_result(directory):
        return EXIT_DONE
    keep_room(directory)
    began = time.monotonic()
    result = _run(directory, lock)
    if result is None:
        return EXIT_FAILED
    write_result(directory, replace(result, seconds=time.monotonic() - began))
    _say(result.message)
    return EXIT_DONE if result.ok else EXIT_FAILED


def _reuse_memory() -> None:
    """Megabytes come and go all the time: given back to the system, each page would be asked for anew."""
    libc = ctypes.CDLL(None)
    libc.mallopt(_MMAP_THRESHOLD, 32 << 20)
    libc.mallopt(_TRIM_THRESHOLD, 64 << 20)


def _work_in_batches() -> None:
    """Tar and the compressor do not interrupt each other whenever one of them has something to do again."""
    with suppress(OSError):  # a container may forbid it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _own_lock(directory: Path) -> int | None:
    """The lock that the starter took and left to us, or one that we take."""
    path = directory / LOCK
    inherited = os.environ.pop(LOCK_VARIABLE, None)
    if inherited is not None and is_file_at(int(inherited), path):
        os.set_inheritable(int(inherited), False)
        return int(inherited)
    return try_lock(path)


def _run(directory: Path, lock: int) -> Result | None:
    """Any failure becomes a result: a job that says nothing counts as killed and would be started again.

    An earlier leader's says nothing: today's has not asked for it, and has its own in its place.
    """
    try:
        spec = load_spec((directory / SPEC).read_bytes())
        return _attempts(spec, JobContext(Reporter(directory), directory, [lock]))
    except StaleEpoch as over:
        _say(over.message)
        return None
    except StorageProblem as problem:
        return Result(False, problem.reason, problem.message, outdated=isinstance(problem, HomeChanged))
    except Exception as error:  # noqa: BLE001 - told in the result, with its trace in the log
        _say(traceback.format_exc())
        return Result(False, ErrorReason.ActionFailed, f"the storage job failed: {error!r}")


def _attempts(spec: JobSpec, context: JobContext) -> Result:
    """Passing troubles of the store are tried again here; the rest is for the controller to judge."""
    for pause in _PAUSES:
        try:
            return _attempt(spec, context)
        except StorageProblem as problem:
            if not problem.transient:
                raise
            _say(f"{problem.message}; trying again in {pause} s")
            time.sleep(pause)
    return _attempt(spec, context)


def _say(words: str) -> None:
    """For the log, which a full disk cannot take: no reason to end without a result."""
    with suppress(OSError):
        print(words, file=sys.stderr)


def _attempt(spec: JobSpec, context: JobContext) -> Result:
    done = run_job(spec, context)
    told = context.reporter
    return Result(True, None, done.message, done.archive, left_out=told.left_out, changed=told.changed)


if __name__ == "__main__":
    # The result is written: to take the interpreter apart would only keep the locks.
    os._exit(main(sys.argv[1:]))
