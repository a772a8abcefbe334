"""The fork server for monitors of commands on Docker (ADR 0035): see `fork_loop`.

Standard library only (see `engine_http`). A monitor is no child of the process that asked for it,
so it outlives that process and the fork server.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from codehub.host.processes import set_command_line
from codehub.runtimes.docker.engine_command import EngineCommand
from codehub.runtimes.docker.engine_http import EngineHttp
from codehub.runtimes.docker.monitor_request import MonitorRequest
from codehub.runtimes.exec_directory import UMASK, ExecDirectory
from codehub.runtimes.exec_monitor import ExecMonitor
from codehub.runtimes.exec_request import CommandRefused
from codehub.runtimes.process import cgroups, fork_loop

STARTED, DUPLICATE, REFUSED = "started", "duplicate", "refused "
_REQUEST_SECONDS = 10.0
_ERROR_FILE = "monitor-error"


def main() -> None:
    fork_loop.run("codehub-exec-forkserver", serve)


def serve(connection: socket.socket) -> None:
    connection.settimeout(_REQUEST_SECONDS)
    with connection.makefile() as reader:
        request = MonitorRequest.from_json(reader.read())
    _detach(request)
    if request.command.is_too_late:
        connection.sendall(f"{REFUSED}its start took too long".encode())
        return
    directory = ExecDirectory(Path(request.directory))
    if not directory.create():
        connection.sendall(DUPLICATE.encode())
        return
    monitor(connection, request, directory)


def monitor(connection: socket.socket, request: MonitorRequest, directory: ExecDirectory) -> None:
    """Run the monitor of a command. If it fails, its command ends with it."""

    def report(text: str) -> None:
        with contextlib.suppress(OSError):  # its client may be dead by now: the command runs on
            connection.sendall(text.encode())
        connection.close()

    command = EngineCommand(EngineHttp(request.engine_url), request.container, request.command, directory)
    try:
        ExecMonitor(directory, request.command, command).run(lambda: report(STARTED))
    except CommandRefused as refused:
        directory.remove()
        report(f"{REFUSED}{refused}")
    except Exception as error:
        try:
            command.kill()
        finally:
            with contextlib.suppress(OSError):  # such as a full disk
                (directory.path / _ERROR_FILE).write_text(f"{error!r}\n")
        raise


def _detach(request: MonitorRequest) -> None:
    """Leave everything that ends with CodeHub: its session, its directory, and its service's groups."""
    set_command_line("codehub-exec", request.command.exec_id)
    os.setsid()
    os.chdir("/")
    os.umask(UMASK)
    for group in request.groups:
        with contextlib.suppress(OSError):  # then it may end when CodeHub's service is restarted
            cgroups.create({group: {}})
            cgroups.join([group])


if __name__ == "__main__":
    main()
