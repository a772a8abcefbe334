"""Client of a fork server: the keepers', or another one that `fork_loop` runs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path

from codehub.runtimes.process import forkserver, keeper
from codehub.runtimes.process.keeper_request import KeeperRequest

PYTHON_ENVIRONMENT = {
    "PYTHONPATH": str(Path(__file__).parents[3]),
    "PATH": os.defpath,
    "LANG": "C.UTF-8",
}


def python_program(module: str) -> list[str]:
    """Return the command for a module that needs no installed packages.

    `-S` skips the search for them.
    """
    return [sys.executable, "-S", "-P", "-m", module]


_PADDING = 1024
"""Bytes of the command line, for the path that a keeper shows there."""


class ForkServerClient:
    """Client that starts its fork server on demand, and again if that has died."""

    def __init__(self, module: str = forkserver.__name__) -> None:
        self._module = module
        self._lock = threading.Lock()
        self._requests: socket.socket | None = None

    def start(self, request: KeeperRequest) -> str:
        """Start a keeper and return its report.

        The report is `GONE` if the keeper ended without one: then try again.
        """
        return self.send(json.dumps(asdict(request))) or keeper.GONE

    def send(self, request: str) -> str:
        """Have a new process serve a request, and return its report: empty if it ended without one."""
        with self.connect() as ours:
            ours.sendall(request.encode())
            ours.shutdown(socket.SHUT_WR)
            with ours.makefile() as reader:
                return reader.read()

    def connect(self) -> socket.socket:
        """Return a connection to a new process."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._send(theirs)
        except BaseException:
            ours.close()
            raise
        return ours

    def warm_up(self) -> None:
        with self._lock:
            if self._requests is None:
                self._requests = _start_fork_server(self._module)

    def _send(self, connection: socket.socket) -> None:
        with self._lock:
            if self._requests is not None and _try_send(self._requests, connection):
                return
            if self._requests is not None:
                self._requests.close()
            self._requests = _start_fork_server(self._module)
            socket.send_fds(self._requests, [b"."], [connection.fileno()])


def _try_send(requests: socket.socket, connection: socket.socket) -> bool:
    try:
        socket.send_fds(requests, [b"."], [connection.fileno()])
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def _start_fork_server(module: str) -> socket.socket:
    ours, theirs = socket.socketpair()
    with theirs:
        started = subprocess.run(
            [*python_program(module), "-" * _PADDING],
            env=PYTHON_ENVIRONMENT,
            cwd="/",
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            check=False,
        )
    if started.returncode != 0:
        ours.close()
        raise OSError(f"the fork server {module} does not start: exit code {started.returncode}")
    return ours


FORK_SERVER = ForkServerClient()
