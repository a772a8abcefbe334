"""Start and supervision of a file agent (ADR 0036). Standard library only (see `keeper`)."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from functools import partial
from typing import NoReturn

from codehub.host.processes import set_command_line
from codehub.runtimes.files import agent
from codehub.runtimes.files.channel import Channel, ClientGone
from codehub.runtimes.files.protocol import FileCode, FileRefused
from codehub.runtimes.process import cgroups, seccomp
from codehub.runtimes.process.workspace_process import ExecSettings, confine, report_error, start_inside

_END_MILLISECONDS = 2000


def serve(connection: socket.socket, settings: ExecSettings) -> None:
    """Start a file agent for a client, and end it as soon as the client has gone.

    The agent itself may be busy, or stopped by the workspace's user.
    """
    connection.settimeout(None)
    set_command_line("codehub-files")
    try:
        cgroups.join(settings.groups)
        become = partial(_become_agent, connection, settings)
        process = start_inside(settings, become, client=connection.fileno())
    except OSError as error:
        message = f"the workspace cannot be entered: {error.strerror or error}"
        with contextlib.suppress(ClientGone):
            Channel(connection).send_error(FileRefused(FileCode.FAILED, message))
        return
    _supervise(connection, process)


def _supervise(connection: socket.socket, process: int) -> None:
    handle = os.pidfd_open(process)
    watch = select.poll()
    watch.register(connection, select.POLLRDHUP)
    watch.register(handle, select.POLLIN)
    watch.poll()
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)
        if _has_ended(handle, _END_MILLISECONDS):
            break
    os.waitpid(process, 0)


def _has_ended(handle: int, milliseconds: int) -> bool:
    end = select.poll()
    end.register(handle, select.POLLIN)
    return bool(end.poll(milliseconds))


def _become_agent(connection: socket.socket, settings: ExecSettings, report: int) -> NoReturn:
    """Become the agent: keep nothing but the client, drop all rights, and only then touch the home."""
    try:
        _keep_only(connection.fileno(), report)
        confine(settings)
        os.chdir(settings.env["HOME"])
        if settings.seccomp:
            seccomp.install(settings.seccomp)
        os.close(report)
        signal.signal(signal.SIGTERM, agent.end)
        agent.serve(connection, os.fsencode(settings.env["HOME"]))
    except OSError as error:
        report_error(report, error)
    finally:
        os._exit(0)


def _keep_only(*kept: int) -> None:
    """Close all other descriptors. The standard streams lead to the keeper's log until then."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    first = 3
    for descriptor in sorted(kept):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))
