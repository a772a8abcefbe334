"""The keeper fork server: forks a keeper for each request (ADR 0011).

`python -m codehub.runtimes.process.forkserver PADDING`, with a Unix socket as its standard input.
Each message on the socket carries a connection, from which the request is read and to which the
result is written. PADDING reserves room on the command line, where a keeper shows its directory.
Loading the modules takes longer than the rest of a start, and forked keepers share the memory. The
fork server ends when the other end is closed.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import time
from pathlib import Path

from codehub.host.processes import set_command_line
from codehub.runtimes.process.keeper import ALREADY_RUNNING, GONE, Keeper
from codehub.runtimes.process.keeper_request import KeeperRequest
from codehub.runtimes.process.spawn import receive
from codehub.runtimes.process.stale_processes import Isolation, StaleProcessesAlive, kill_stale_processes
from codehub.runtimes.process.state_directory import DirectoryGone, StateCorrupted, StateDirectory


def main() -> None:
    # The parent exits once the modules are loaded: that is how the client knows that the server is
    # ready.
    if os.fork() != 0:
        return
    os.setsid()
    set_command_line("codehub-keeper-forkserver")
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    connection = _next_request()
    if connection is not None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        serve(connection)


def _next_request() -> socket.socket | None:
    """Fork for each request.

    Return its connection in the child, and None in the server once the other end is closed.
    """
    with socket.socket(fileno=_take_standard_input()) as requests:
        while True:
            message, descriptors = receive(requests, 1, 1)
            if not message:
                return None
            connection = socket.socket(fileno=descriptors[0])
            if os.fork() == 0:
                return connection
            connection.close()


def _take_standard_input() -> int:
    """Return a copy of standard input, and put /dev/null in its place.

    A free descriptor 0 would be reused by the next open, and a keeper replaces it.
    """
    taken = os.dup(0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    return taken


def serve(connection: socket.socket) -> None:
    with connection:
        with connection.makefile() as reader:
            request = KeeperRequest.from_json(reader.read())
        connection.sendall(start_keeper(request, connection).encode())


def start_keeper(request: KeeperRequest, connection: socket.socket) -> str:
    """Start a keeper and return the result.

    The keeper itself, a child process, never returns from here.
    """
    set_command_line("codehub-keeper", request.directory)
    directory = StateDirectory(Path(request.directory))
    try:
        with directory.locked() as lock:
            return ALREADY_RUNNING if lock is None else _launch(directory, request, connection)
    except DirectoryGone:
        return GONE
    except (StaleProcessesAlive, OSError) as error:
        return str(error)


def _launch(directory: StateDirectory, request: KeeperRequest, connection: socket.socket) -> str:
    """Fork the keeper, which inherits the lock, and return its report."""
    _kill_predecessor(directory, request)
    directory.prepare(request.uid, request.isolation == Isolation.USER, request.files, request.gateway_group)
    if time.monotonic() > request.launch_until:
        return "removing what the last run left took too long; the next start has less to remove"
    _set_home_owner(request)
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(reader)
        connection.close()
        Keeper(directory, request).run(report_to=writer)
        sys.exit()
    os.close(writer)
    with os.fdopen(reader) as report:
        return report.read() or f"the keeper ended early: {directory.last_output(5)}"


def _kill_predecessor(directory: StateDirectory, request: KeeperRequest) -> None:
    """Kill what an earlier keeper left running. It is dead itself, because we hold its lock."""
    try:
        state = directory.read_state()
    except StateCorrupted:
        state = None
    kill_stale_processes(request.workspace_id, state, request.isolation, request.uid, request.groups)


def _set_home_owner(request: KeeperRequest) -> None:
    """Give the home to the workspace's user, and close it to others if there is no sandbox."""
    home = Path(request.home)
    if request.uid is not None and home.lstat().st_uid != request.uid:
        os.chown(home, request.uid, request.uid, follow_symlinks=False)
    if request.isolation == Isolation.USER:
        home.chmod(home.stat().st_mode & 0o700)


if __name__ == "__main__":
    main()
