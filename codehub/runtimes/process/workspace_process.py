"""Start of a process inside a running workspace (ADR 0033). Standard library only (see `keeper`)."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from codehub.host.processes import descendants
from codehub.runtimes.process.cgroups import GroupSettings
from codehub.runtimes.process.keyring import leave_session_keyring
from codehub.runtimes.process.namespace_entry import (
    NamespaceSet,
    drop_rights,
    forbid_imports,
    forbid_tracing,
    fork_sibling,
)

_OOM_SCORE_ADJUSTMENT = "500"
START_SECONDS = 20.0
_REPORT_BYTES = 4096
_KILL_ROUNDS = 2
_RESTORED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)


@dataclass(frozen=True)
class ExecSettings:
    """How commands run in one workspace: as its IDE does."""

    child: int
    """The first process of the workspace below the keeper."""
    sandbox_depth: int
    uid: int | None
    env: Mapping[str, str]
    umask: int
    groups: GroupSettings
    limits: Mapping[int, int]
    seccomp: bytes


def start_inside(
    settings: ExecSettings,
    become: Callable[[int], NoReturn],
    client: int | None = None,
    within: float = START_SECONDS,
) -> int:
    """Start a process inside, and return it, a child of this one.

    `become` runs in it with all rights, and a descriptor to which it reports an error (see
    `report_error`). That has to close before this returns: the workspace's user may stop the process
    before, so it is killed if that takes too long, or if the client hangs up. A process in between joins
    the namespaces, since their process namespace only takes effect for a child.
    """
    begun = _ticks_since_boot()
    reader, writer = os.pipe()
    between = os.fork()
    if between == 0:
        os.close(reader)
        _enter_and_fork(settings, become, writer)
    os.close(writer)
    try:
        report = _read_report(reader, client, within)
    except OSError:
        _kill_children_since(begun)
        with contextlib.suppress(ChildProcessError):  # it has been waited for
            os.waitpid(between, 0)
        raise
    finally:
        os.close(reader)
    os.waitpid(between, 0)
    return _process_of(report)


def _read_report(reader: int, client: int | None, within: float) -> bytes:
    """Return the whole report. Raise OSError if it does not end in time, or if the client hangs up."""
    until, report = time.monotonic() + within, b""
    ready = select.poll()
    ready.register(reader, select.POLLIN)
    if client is not None:
        ready.register(client, select.POLLRDHUP)
    while True:
        found = [descriptor for descriptor, _ in ready.poll(max(0.0, until - time.monotonic()) * 1000)]
        if not found:
            raise OSError(errno.ETIMEDOUT, "its start took too long")
        if reader not in found:
            raise OSError(errno.ECONNABORTED, "its client has gone")
        data = os.read(reader, _REPORT_BYTES)
        if not data:
            return report
        report += data


def _ticks_since_boot() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def _kill_children_since(begun: int) -> None:
    """Kill the children of this process from then on, also one that is not reported yet."""
    for _ in range(_KILL_ROUNDS):  # the process in between may fork until it is dead
        for process, depth in descendants(os.getpid()).items():
            if depth == 1 and process.started >= begun:
                process.send(signal.SIGKILL)
                os.waitpid(process.pid, 0)


def _process_of(report: bytes) -> int:
    """Return the process that has started. If it has ended, raise the OSError that it reports."""
    lines = dict(line.split(" ", 1) for line in report.decode(errors="replace").splitlines())
    if "error" not in lines and "process" in lines:
        return int(lines["process"])
    if "process" in lines:
        os.waitpid(int(lines["process"]), 0)
    number, _, message = lines.get("error", "0 its start was interrupted").partition(" ")
    raise OSError(int(number), message)


def _enter_and_fork(settings: ExecSettings, become: Callable[[int], NoReturn], report: int) -> NoReturn:
    try:
        namespaces = NamespaceSet.of_workspace(settings.child, settings.sandbox_depth)
        leave_session_keyring()
        with contextlib.suppress(PermissionError):
            Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE_ADJUSTMENT)
        forbid_imports()
        forbid_tracing()
        namespaces.join()
        pid = fork_sibling()
        if pid == 0:
            become(report)
        os.write(report, f"process {pid}\n".encode())
    except OSError as error:
        report_error(report, error)
    finally:
        os._exit(0)


def confine(settings: ExecSettings) -> None:
    """Give this process the signals, limits, user and rights of the workspace's processes."""
    for number in _RESTORED:
        signal.signal(number, signal.SIG_DFL)
    for limit, value in settings.limits.items():
        resource.setrlimit(limit, (value, value))
    os.umask(settings.umask)
    drop_rights(settings.uid)


def report_error(report: int, error: OSError) -> None:
    message = " ".join((error.strerror or str(error)).split())
    os.write(report, f"error {error.errno or 0} {message}\n".encode(errors="replace"))
