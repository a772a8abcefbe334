"""The nursery: a process that has everything loaded a keeper needs, and forks one for each request.

`python -m codehub.runtimes.process.forkserver ROOM`, with a Unix socket for its standard input. Each message on
it brings a connection, from which the request is read and to which the answer goes. ROOM, whatever it says,
makes room on the command line, where a keeper names its directory. Loading takes longer than all the rest of
a start; forked keepers also share the memory. The nursery ends with whoever holds the other end.
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
    # Nobody waits for us: whoever started the nursery only wants to know that it is ready.
    if os.fork() != 0:
        return
    os.setsid()
    set_command_line("codehub-nursery")
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    connection = _next_request()
    if connection is not None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        serve(connection)


def _next_request() -> socket.socket | None:
    """In a child of its own for each request, its connection; None once nobody asks any more."""
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
    """Something must stay in its place, or what is opened next would be there, where a keeper closes it."""
    taken = os.dup(0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    return taken


def serve(connection: socket.socket) -> None:
    with connection:
        with connection.makefile() as reader:
            request = KeeperRequest.from_json(reader.read())
        connection.sendall(answer(request, connection).encode())


def answer(request: KeeperRequest, connection: socket.socket) -> str:
    """Start a keeper; what came of it. The keeper, a process of its own, never returns from here."""
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
    """Fork the keeper, which inherits the lock, and return what it reports once its child is there."""
    _end_predecessor(directory, request)
    directory.prepare(request.uid, request.isolation == Isolation.USER, request.files, request.gateway_group)
    if time.monotonic() > request.launch_until:
        return "to clear away what the last run left took too long; the next start has less to do"
    _give_home(request)
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(reader)
        connection.close()
        Keeper(directory, request).run(report_to=writer)
        sys.exit()
    os.close(writer)
    with os.fdopen(reader) as report:
        return report.read() or f"the keeper ended at once: {directory.last_output(5)}"


def _end_predecessor(directory: StateDirectory, request: KeeperRequest) -> None:
    """We hold the lock, so an earlier keeper is dead; what it kept may not be yet."""
    try:
        state = directory.read_state()
    except StateCorrupted:
        state = None
    kill_stale_processes(request.workspace_id, state, request.isolation, request.uid, request.groups)


def _give_home(request: KeeperRequest) -> None:
    """The home itself belongs to the workspace's user; without a sandbox nobody else may look into it."""
    home = Path(request.home)
    if request.uid is not None and home.lstat().st_uid != request.uid:
        os.chown(home, request.uid, request.uid, follow_symlinks=False)
    if request.isolation == Isolation.USER:
        home.chmod(home.stat().st_mode & 0o700)


if __name__ == "__main__":
    main()
