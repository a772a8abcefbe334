"""The loop of a fork server: forks a process for each request. Standard library only (see `keeper`).

A fork server is `python -m MODULE PADDING`, with a Unix socket as its standard input. Each message
on the socket carries a connection, from which the request is read and to which the result is
written. PADDING reserves room on the command line, where a process shows what it is for. Loading
the modules takes longer than the rest of a start, and forked processes share the memory. The fork
server ends when the other end is closed.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
from collections.abc import Callable

from codehub.host.processes import set_command_line
from codehub.runtimes.process.spawn import receive


def run(name: str, serve: Callable[[socket.socket], None]) -> None:
    """Run a fork server in the background. `serve` gets each connection, in a new process."""
    # The parent exits once the modules are loaded: that is how the client knows that the server is
    # ready.
    if os.fork() != 0:
        return
    os.setsid()
    set_command_line(name)
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
