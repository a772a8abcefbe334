"""Worker processes of one part, which share its port."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable

import structlog
import typer

from codehub.cli.heartbeats import Heartbeats
from codehub.host.parent_death import die_with_parent

logger = structlog.get_logger(__name__)

RESTART_PAUSE = 0.5
CHECK_SECONDS = 1.0
"""Seconds between two checks of the heartbeats."""
STEADY_SECONDS = 10.0
STOP_SECONDS = 25.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class WorkersError(Exception):
    """Repeated death of workers while they start."""


def run_workers(count: int, work: Callable[[int], None], heartbeats: Heartbeats | None = None) -> None:
    """Run `work` in `count` processes until SIGTERM.

    Replace one that dies or hangs, with the same number. A single worker is a process as well: only
    its parent can notice that it hangs. Call this before any event loop or thread
    exists: the workers are forked, and share imported modules.
    """
    stopping = False

    def on_stop(_number: int, _frame: object) -> None:
        nonlocal stopping
        stopping = True
        _send(signal.SIGTERM, workers)

    def start(number: int) -> None:
        workers[_fork(lambda: work(number))] = number

    workers: dict[int, int] = {}
    for signal_number in STOP_SIGNALS:
        signal.signal(signal_number, on_stop)
    for number in range(count):
        if not stopping:
            start(number)
    early_deaths, started = 0, time.monotonic()
    checked = started
    while workers and not stopping:
        if heartbeats is not None and time.monotonic() - checked >= CHECK_SECONDS:
            checked = time.monotonic()
            _kill_silent(heartbeats, workers)
        ended = _wait(workers)
        if ended is None or stopping:
            continue
        early_deaths = early_deaths + 1 if time.monotonic() - started < STEADY_SECONDS else 0
        if early_deaths > count:
            break
        logger.error("a worker died", number=ended)
        if heartbeats is not None:
            heartbeats.restart(ended)
        time.sleep(RESTART_PAUSE)
        if not stopping:
            start(ended)
        started = time.monotonic()
    _send(signal.SIGTERM, workers)  # one may have started when the signal arrived
    _wait_for_all(workers)
    if not stopping:
        raise WorkersError(f"{early_deaths} workers died one after the other")


def _kill_silent(heartbeats: Heartbeats, workers: dict[int, int]) -> None:
    """Kill silent workers. A worker that is stopped or hangs handles no signal but SIGKILL."""
    for pid in heartbeats.find_silent(workers):
        logger.error("a worker does not answer", number=workers[pid])
        _send(signal.SIGKILL, [pid])


def run_in_child(work: Callable[[], None]) -> int:
    """Run `work` in a child process and return its exit code.

    Its memory is freed when it ends, so the parent of the workers stays as small as its modules.
    """
    _, status = os.waitpid(_fork(work), 0)
    return os.waitstatus_to_exitcode(status)


def _fork(work: Callable[[], None]) -> int:
    """Fork a worker.

    Stop signals are blocked until the child has its own handlers, so none is lost.
    """
    hook = die_with_parent(signal.SIGTERM)
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
        return pid
    code = 1
    try:
        hook()
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
        work()
        code = 0
    except typer.Exit as end:
        code = end.exit_code
    except Exception:  # the process ends here, and its log has the reason
        logger.exception("a worker failed")
    finally:
        os._exit(code)


def _wait(workers: dict[int, int]) -> int | None:
    """Return the number of a worker that ended, or None after a short pause."""
    ended, _ = os.waitpid(-1, os.WNOHANG)
    if ended == 0:
        time.sleep(0.1)
    return workers.pop(ended, None)


def _wait_for_all(workers: dict[int, int]) -> None:
    deadline = time.monotonic() + STOP_SECONDS
    while workers:
        if _wait(workers) is None and time.monotonic() > deadline:
            _send(signal.SIGKILL, workers)
            deadline += 5


def _send(number: signal.Signals, workers: Iterable[int]) -> None:
    for pid in list(workers):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
