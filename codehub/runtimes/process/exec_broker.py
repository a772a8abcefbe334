"""The exec broker: starts commands in a running workspace (ADR 0033).

Standard library only (see `keeper`).

A child of the keeper serves each client: it becomes the monitor of the command that the client
requests. The keeper reads nothing from a client, so no client can make it wait. The monitor joins
the workspace's control groups first, so that what a command's output costs counts as the
workspace's.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from functools import partial
from pathlib import Path
from typing import NoReturn

from codehub.host.processes import set_command_line
from codehub.runtimes.exec_directory import UMASK, ExecDirectory
from codehub.runtimes.exec_monitor import ExecMonitor
from codehub.runtimes.exec_request import ExecRequest
from codehub.runtimes.files.protocol import FILES_REQUEST
from codehub.runtimes.process import cgroups, file_broker, libc, seccomp
from codehub.runtimes.process.forked_command import ForkedCommand, Streams
from codehub.runtimes.process.workspace_process import ExecSettings, confine, report_error, start_inside

SOCKET = "exec.sock"
"""The broker's socket, beside the directories of the commands."""
STARTED, DUPLICATE = "started", "duplicate"
_BACKLOG = 1024
_REQUEST_SECONDS = 10.0
_ACCEPT_PAUSE_SECONDS = 0.05
_CANNOT_RUN = 126
_PR_SET_PDEATHSIG = 1


class ExecBroker:
    """Listener for requests, from the start of a workspace until its processes are ended."""

    def __init__(self, executions: Path, settings: ExecSettings, selector: selectors.BaseSelector) -> None:
        path = executions / SOCKET
        self._path = path
        self._executions = executions
        self._settings = settings
        self._selector = selector
        self.monitors: set[int] = set()
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.setblocking(False)
        self._listener.bind(str(path))
        path.chmod(0o660)
        self._listener.listen(_BACKLOG)
        self._is_open = True
        selector.register(self._listener, selectors.EVENT_READ, self)

    def accept(self) -> None:
        """Accept a client and fork the monitor of its command. A failure affects this client only."""
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            time.sleep(_ACCEPT_PAUSE_SECONDS)  # such as no free descriptors: the client keeps waiting
            return
        with connection:
            try:
                child = os.fork()
            except OSError:
                return
            if child == 0:
                self._become_monitor(connection.fileno())
        self.monitors.add(child)

    def child_ended(self, pid: int) -> None:
        self.monitors.discard(pid)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._selector.unregister(self._listener)
            self._path.unlink(missing_ok=True)
            self._listener.close()

    def _become_monitor(self, client: int) -> NoReturn:
        """Serve the client in a child of the keeper, which never returns to the keeper's own work."""
        try:
            signal.set_wakeup_fd(-1)  # it belongs to the keeper
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            libc.call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            connection = _keep_only(client)
            _serve(connection, self._executions, self._settings)
        except Exception as error:  # noqa: BLE001 - the keeper's log is the only place left for it
            os.write(2, f"[codehub: a command ended without a record: {error!r}]\n".encode())
        finally:
            os._exit(0)


def _keep_only(client: int) -> socket.socket:
    """Close all descriptors of the keeper but its standard streams and the client's."""
    os.dup2(client, 3)
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    return socket.socket(fileno=3)


def _serve(connection: socket.socket, executions: Path, settings: ExecSettings) -> None:
    connection.settimeout(_REQUEST_SECONDS)
    with connection.makefile() as reader:
        line = reader.readline()
    if line == FILES_REQUEST:
        file_broker.serve(connection, settings)
        return
    request = ExecRequest.from_json(line)
    if request.is_too_late:
        return
    set_command_line("codehub-exec", request.exec_id)
    os.umask(UMASK)
    directory = ExecDirectory(executions / request.exec_id)
    if not directory.create():
        connection.sendall(DUPLICATE.encode())
        return
    cgroups.join(settings.groups)

    def started() -> None:
        with contextlib.suppress(OSError):
            connection.sendall(STARTED.encode())
        connection.close()

    command = ForkedCommand(
        request, lambda streams: start_inside(settings, partial(_execute, request, settings, streams))
    )
    ExecMonitor(directory, request, command).run(started)


def _execute(request: ExecRequest, settings: ExecSettings, streams: Streams, report: int) -> NoReturn:
    """Become the command: take its streams, drop all rights, and only then touch the home."""
    try:
        streams.take()
        os.dup2(report, 3, inheritable=False)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        report = 3
        confine(settings)
        environment = _environment(request, settings)
        _enter_directory(environment["HOME"], request.cwd)
        if settings.seccomp:
            seccomp.install(settings.seccomp)
        os.execvpe(request.command[0], request.command, environment)  # noqa: S606 - no shell is wanted
    except OSError as error:
        report_error(report, error)
    finally:
        os._exit(_CANNOT_RUN)


def _enter_directory(home: str, cwd: str) -> None:
    try:
        os.chdir(os.path.join(home, cwd))  # noqa: PTH118 - no module may be loaded any more
    except OSError as error:
        raise OSError(0, f"the directory {cwd!r} cannot be entered: {error.strerror}") from error


def _environment(request: ExecRequest, settings: ExecSettings) -> dict[str, str]:
    terminal = {"TERM": "xterm-256color"} if request.tty is not None else {}
    return {**settings.env, **terminal, **request.env}
