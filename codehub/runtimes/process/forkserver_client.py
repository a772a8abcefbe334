"""Where keepers come from, seen by whoever wants one."""

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
    """A program of ours that needs none of the installed packages, and does not look for them."""
    return [sys.executable, "-S", "-P", "-m", module]


_ROOM = 1024


class ForkServerClient:
    """The nursery of this process, started when it is needed, and again should it be gone."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._requests: socket.socket | None = None

    def start(self, request: KeeperRequest) -> str:
        """Have a keeper started; its answer, or `GONE` when it ended before it had one: to be tried again."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                self._hand_over(theirs)
            ours.sendall(json.dumps(asdict(request)).encode())
            ours.shutdown(socket.SHUT_WR)
            with ours.makefile() as reader:
                return reader.read() or keeper.GONE

    def warm_up(self) -> None:
        with self._turn:
            if self._requests is None:
                self._requests = _start_fork_server()

    def _hand_over(self, connection: socket.socket) -> None:
        with self._turn:
            if self._requests is not None and _is_sent(self._requests, connection):
                return
            if self._requests is not None:
                self._requests.close()
            self._requests = _start_fork_server()
            socket.send_fds(self._requests, [b"."], [connection.fileno()])


def _is_sent(requests: socket.socket, connection: socket.socket) -> bool:
    try:
        socket.send_fds(requests, [b"."], [connection.fileno()])
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def _start_fork_server() -> socket.socket:
    ours, theirs = socket.socketpair()
    with theirs:
        started = subprocess.run(
            [*python_program(forkserver.__name__), "-" * _ROOM],
            env=PYTHON_ENVIRONMENT,
            cwd="/",
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            check=False,
        )
    if started.returncode != 0:
        ours.close()
        raise OSError(f"the keepers' nursery does not start: exit code {started.returncode}")
    return ours


FORK_SERVER = ForkServerClient()
