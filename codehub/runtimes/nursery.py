"""The nursery: a process that has everything loaded a keeper needs, and forks one for each request.

`python -m codehub.runtimes.nursery ROOM`, with a Unix socket for its standard input. Each message on it
brings a connection, from which the request is read and to which the answer goes. ROOM, whatever it says,
makes room on the command line, where a keeper names its directory. Loading takes longer than all the rest of
a start; forked keepers also share the memory. The nursery ends with whoever holds the other end.
"""

from __future__ import annotations

import gc
import os
import signal
import socket

from codehub.runtimes import keeper
from codehub.runtimes.procfs import rename
from codehub.runtimes.request import Request


def main() -> None:
    # Nobody waits for us: whoever started the nursery only wants to know that it is ready.
    if os.fork() != 0:
        return
    os.setsid()
    rename("codehub-nursery")
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
            message, descriptors, *_ = socket.recv_fds(requests, 1, 1, socket.MSG_CMSG_CLOEXEC)
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
            request = Request.from_json(reader.read())
        connection.sendall(keeper.answer(request, connection).encode())


if __name__ == "__main__":
    main()
