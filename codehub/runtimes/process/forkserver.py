"""The keeper fork server: forks a keeper for each request (ADR 0011).

See `fork_loop`. A keeper shows its directory on the command line.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

from codehub.host.processes import set_command_line
from codehub.runtimes.process import fork_loop
from codehub.runtimes.process.keeper import ALREADY_RUNNING, GONE, Keeper
from codehub.runtimes.process.keeper_request import KeeperRequest
from codehub.runtimes.process.stale_processes import Isolation, StaleProcessesAlive, kill_stale_processes
from codehub.runtimes.process.state_directory import DirectoryGone, StateCorrupted, StateDirectory


def main() -> None:
    fork_loop.run("codehub-keeper-forkserver", serve)


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
