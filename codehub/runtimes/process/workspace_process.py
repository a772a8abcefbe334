"""Start of a process inside a running workspace (ADR 0033). Standard library only (see `keeper`)."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

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


def start_inside(settings: ExecSettings, become: Callable[[int], NoReturn]) -> int:
    """Start a process inside, and return it, a child of this one.

    `become` runs in it with all rights, and a descriptor to which it reports an error (see
    `report_error`). That has to close before this returns. A process in between joins the
    namespaces, since their process namespace only takes effect for a child.
    """
    reader, writer = os.pipe()
    between = os.fork()
    if between == 0:
        os.close(reader)
        _enter_and_fork(settings, become, writer)
    os.close(writer)
    with os.fdopen(reader) as report:
        lines = dict(line.split(" ", 1) for line in report.read().splitlines())
    os.waitpid(between, 0)
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
