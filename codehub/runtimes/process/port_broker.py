"""The way into a workspace's own network, for the gateway alone. Standard library only (see `keeper`).

Whoever connects to the door is handed two sockets that were made inside, one for each loopback address, and
connects them itself. Nothing is asked and no byte is passed on, so nobody can keep the keeper waiting. Each
pair is made by a child that goes inside for it: without root there is no way back from a user namespace.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from pathlib import Path
from typing import NoReturn

from codehub.runtimes.process.network import Namespaces

_CHILDREN = 8
_BACKLOG = 1024
_BREATH_SECONDS = 0.05


class PortBroker:
    """Open from the start of a workspace until its processes are ended."""

    def __init__(self, path: Path, namespaces: Namespaces, selector: selectors.BaseSelector) -> None:
        self._path = path
        self._namespaces = namespaces
        self._selector = selector
        self._children: set[int] = set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.setblocking(False)
        self._listener.bind(str(path))
        path.chmod(0o600)
        self._listener.listen(_BACKLOG)
        self._is_attended = False
        self._is_open = True
        self._attend(True)

    def answer(self) -> None:
        """Let a child make sockets for whoever stands before the door; a failure is theirs alone."""
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            time.sleep(_BREATH_SECONDS)  # no descriptors left, for one: who waits is still there afterwards
            return
        with connection:
            try:
                child = os.fork()
            except OSError:
                return
            if child == 0:
                self._hand_out(connection)
        self._children.add(child)
        self._attend(len(self._children) < _CHILDREN)

    def child_ended(self, pid: int) -> None:
        self._children.discard(pid)
        self._attend(len(self._children) < _CHILDREN)

    def close(self) -> None:
        if self._is_open:
            self._attend(False)
            self._is_open = False
            self._path.unlink(missing_ok=True)
            self._listener.close()
            self._namespaces.close()

    def _attend(self, attend: bool) -> None:
        if not self._is_open or attend == self._is_attended:
            return
        self._is_attended = attend
        if attend:
            self._selector.register(self._listener, selectors.EVENT_READ, self)
        else:
            self._selector.unregister(self._listener)

    def _hand_out(self, connection: socket.socket) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)  # the keeper's own
            self._namespaces.enter()
            made = _loopback_sockets()
            connection.setblocking(False)
            socket.send_fds(connection, [b"."], [each.fileno() for each in made])
        except OSError as error:
            os.write(2, f"[codehub: a port cannot be reached: {error}]\n".encode())
        finally:
            os._exit(0)


def _loopback_sockets() -> list[socket.socket]:
    made = [socket.socket(socket.AF_INET, socket.SOCK_STREAM)]
    if socket.has_ipv6 and Path("/proc/net/if_inet6").exists():
        made.append(socket.socket(socket.AF_INET6, socket.SOCK_STREAM))
    return made
