"""A port that speaks TLS: plain HTTP is told so there, and nobody is at the door for long."""

import asyncio
import errno
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final

import structlog

from codehub.gateway.address_limits import AddressShare, AddressShares, peer_address
from codehub.gateway.certificate import RenewedCertificate
from codehub.gateway.http1 import reply

logger = structlog.get_logger(__name__)

AT_ONCE: Final = 64
"""Connections that are taken in one turn, so that a crowd at the door does not hold up those inside."""
PAUSE_SECONDS: Final = 0.5
SHUTDOWN_SECONDS: Final = 2.0
"""How long a client may take to answer the end of TLS; what it still sends until then is thrown away."""
_HANDSHAKE: Final = b"\x16"
_NO_ROOM: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_SPEAK_TLS: Final = reply.error(
    400, "BAD_REQUEST", "This port speaks HTTPS: use an https:// address.", close=True
)


class TlsServer:
    """Looks at the first byte of each connection before a handshake is begun for it."""

    def __init__(
        self,
        listener: socket.socket,
        certificate: RenewedCertificate,
        make: Callable[[], asyncio.Protocol],
        start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        *,
        patience: float,
        most: int,
        addresses: AddressShares,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._certificate = certificate
        self._make = make
        self._start = start
        self._patience = patience
        self._most = most
        self._addresses = addresses
        """Of connections before the end of their handshake."""
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        self._share_of: dict[socket.socket, AddressShare] = {}
        self._shaking: set[asyncio.Task[None]] = set()

    def open(self, backlog: int) -> None:
        self._listener.listen(backlog)
        self._loop.add_reader(self._listener, self._take)

    def close(self) -> None:
        """Nobody comes in any more, and who has not begun to speak HTTP goes."""
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for connection in list(self._silent):
            self._dismiss(connection)
        for handshake in self._shaking:
            handshake.cancel()

    def _take(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, name = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                self._pause(error)
                return
            self._receive(connection, self._addresses.enter(peer_address(name)))

    def _pause(self, error: OSError) -> None:
        """The connections stay in the kernel's queue until there is room again."""
        logger.warning("no connection can be taken", error=str(error), again_in_seconds=PAUSE_SECONDS)
        self._loop.remove_reader(self._listener)
        self._loop.call_later(PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._take)

    def _receive(self, connection: socket.socket, share: AddressShare) -> None:
        if len(self._silent) + len(self._shaking) >= self._most or share.is_exceeded:
            share.connections -= 1
            connection.close()  # a clear answer would take the very handshake that there is no room for
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._share_of[connection] = share
        self._silent[connection] = self._loop.call_later(self._patience, self._dismiss, connection)
        self._loop.add_reader(connection, self._hear, connection)

    def _hear(self, connection: socket.socket) -> None:
        try:
            first = connection.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        if first == _HANDSHAKE:
            self._leave_silence(connection)
            handshake = self._start(self._shake_hands(connection))
            self._shaking.add(handshake)
            handshake.add_done_callback(self._shaking.discard)
            return
        if first:
            _tell(connection)
        self._dismiss(connection)

    async def _shake_hands(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._make,
                connection,
                ssl=self._certificate.context,
                ssl_handshake_timeout=self._patience,
                ssl_shutdown_timeout=SHUTDOWN_SECONDS,
            )
        except OSError as error:  # refused, given up or too slow: all of them the client's own doing
            logger.debug("a handshake failed", error=repr(error))
        finally:
            self._release_share(connection)

    def _dismiss(self, connection: socket.socket) -> None:
        self._leave_silence(connection)
        self._release_share(connection)
        connection.close()

    def _release_share(self, connection: socket.socket) -> None:
        self._share_of.pop(connection).connections -= 1

    def _leave_silence(self, connection: socket.socket) -> None:
        self._silent.pop(connection).cancel()
        self._loop.remove_reader(connection)


def _tell(connection: socket.socket) -> None:
    """Plain HTTP on this port gets one clear answer, when there is somebody left to hear it."""
    try:
        connection.recv(65536)  # what is left unread would turn the close into a reset
        connection.send(_SPEAK_TLS.wire(head_only=False, close=True))
    except OSError as error:
        logger.debug("nobody heard that this port speaks HTTPS", error=str(error))
