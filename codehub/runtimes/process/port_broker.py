"""The port broker: gives CodeHub access to a workspace's network (ADR 0013).

Standard library only (see `keeper`). Each client receives two sockets that were created in the
namespace, one for each loopback address, and connects them itself. The broker reads no request and
relays no data, so no client can make the keeper wait. A short-lived child creates each pair:
without root a process that has joined a user namespace cannot leave it.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from codehub.runtimes.process.network import Namespaces

_MAX_CHILDREN = 8
_BACKLOG = 1024
_ACCEPT_PAUSE_SECONDS = 0.05


class PortBroker:
    """Listener for clients, from the start of a workspace until its processes are ended."""

    def __init__(
        self, modes: Mapping[Path, int], namespaces: Namespaces, selector: selectors.BaseSelector
    ) -> None:
        """`modes` are the sockets to listen on, each with its permissions: each part has its own."""
        self._namespaces = namespaces
        self._selector = selector
        self._children: set[int] = set()
        self._listeners: dict[Path, socket.socket] = {}
        self._is_polled = False
        self._is_open = True
        try:
            for path, mode in modes.items():
                self._listeners[path] = _listen(path, mode)
        except OSError:
            self._close_listeners()
            raise
        self._set_polled(True)

    def accept(self) -> None:
        """Accept a client of each socket, and fork a child that serves it."""
        for listener in self._listeners.values():
            if self._is_polled:
                self._accept(listener)

    def _accept(self, listener: socket.socket) -> None:
        """Accept a client. A failure affects this client only."""
        try:
            connection, _ = listener.accept()
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
                self._send_sockets(connection)
        self._children.add(child)
        self._set_polled(len(self._children) < _MAX_CHILDREN)

    def child_ended(self, pid: int) -> None:
        self._children.discard(pid)
        self._set_polled(len(self._children) < _MAX_CHILDREN)

    def close(self) -> None:
        if self._is_open:
            self._set_polled(False)
            self._is_open = False
            self._close_listeners()
            self._namespaces.close()

    def _close_listeners(self) -> None:
        for path, listener in self._listeners.items():
            path.unlink(missing_ok=True)
            listener.close()

    def _set_polled(self, polled: bool) -> None:
        if not self._is_open or polled == self._is_polled:
            return
        self._is_polled = polled
        for listener in self._listeners.values():
            if polled:
                self._selector.register(listener, selectors.EVENT_READ, self)
            else:
                self._selector.unregister(listener)

    def _send_sockets(self, connection: socket.socket) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)  # it belongs to the keeper
            self._namespaces.enter()
            created = _loopback_sockets()
            connection.setblocking(False)
            socket.send_fds(connection, [b"."], [each.fileno() for each in created])
        except OSError as error:
            os.write(2, f"[codehub: a port cannot be reached: {error}]\n".encode())
        finally:
            os._exit(0)


def _listen(path: Path, mode: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.setblocking(False)
        listener.bind(str(path))
        path.chmod(mode)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _loopback_sockets() -> list[socket.socket]:
    created = [socket.socket(socket.AF_INET, socket.SOCK_STREAM)]
    if socket.has_ipv6 and Path("/proc/net/if_inet6").exists():
        created.append(socket.socket(socket.AF_INET6, socket.SOCK_STREAM))
    return created
