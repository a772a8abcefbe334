"""Accept loop of a TLS port: it limits pending handshakes and answers plain HTTP (ADR 0032)."""

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
"""Connections accepted in one turn of the loop, so that a burst does not delay the open ones."""
PAUSE_SECONDS: Final = 0.5
SHUTDOWN_SECONDS: Final = 2.0
"""How long a client may take to confirm the end of TLS. Its data until then is discarded."""
_HANDSHAKE: Final = b"\x16"
"""The first byte of a TLS handshake (RFC 8446, 5.1)."""
_NO_ROOM: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_HTTPS_REQUIRED: Final = reply.error(
    400, "BAD_REQUEST", "This port speaks HTTPS: use an https:// address.", close=True
)


class TlsServer:
    """Server that reads the first byte of each connection before it begins a handshake."""

    def __init__(
        self,
        listener: socket.socket,
        certificate: RenewedCertificate,
        make_protocol: Callable[[], asyncio.Protocol],
        start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        *,
        handshake_timeout: float,
        max_pending: int,
        addresses: AddressShares,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._certificate = certificate
        self._make_protocol = make_protocol
        self._start = start
        self._handshake_timeout = handshake_timeout
        self._max_pending = max_pending
        self._addresses = addresses
        """Shares of connections whose handshake is not finished."""
        self._awaiting_first_byte: dict[socket.socket, asyncio.TimerHandle] = {}
        self._share_of: dict[socket.socket, AddressShare] = {}
        self._handshakes: set[asyncio.Task[None]] = set()

    def open(self, backlog: int) -> None:
        self._listener.listen(backlog)
        self._loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Stop accepting, and close the connections whose handshake is not finished."""
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for connection in list(self._awaiting_first_byte):
            self._drop(connection)
        for handshake in self._handshakes:
            handshake.cancel()

    def _accept(self) -> None:
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
        """Leave connections in the kernel's queue for a while, because no descriptor or memory is free."""
        logger.warning("no connection can be accepted", error=str(error), retry_in_seconds=PAUSE_SECONDS)
        self._loop.remove_reader(self._listener)
        self._loop.call_later(PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)

    def _receive(self, connection: socket.socket, share: AddressShare) -> None:
        if len(self._awaiting_first_byte) + len(self._handshakes) >= self._max_pending or share.is_exceeded:
            share.connections -= 1
            connection.close()  # no error reply: the handshake limit is reached
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._share_of[connection] = share
        self._awaiting_first_byte[connection] = self._loop.call_later(
            self._handshake_timeout, self._drop, connection
        )
        self._loop.add_reader(connection, self._read_first_byte, connection)

    def _read_first_byte(self, connection: socket.socket) -> None:
        try:
            first = connection.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        if first == _HANDSHAKE:
            self._stop_awaiting(connection)
            handshake = self._start(self._handshake(connection))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)
            return
        if first:
            _reply_to_plain_http(connection)
        self._drop(connection)

    async def _handshake(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=self._certificate.context,
                ssl_handshake_timeout=self._handshake_timeout,
                ssl_shutdown_timeout=SHUTDOWN_SECONDS,
            )
        except OSError as error:  # refused, aborted or too slow: all of these are up to the client
            logger.debug("a handshake failed", error=repr(error))
        finally:
            self._release_share(connection)

    def _drop(self, connection: socket.socket) -> None:
        self._stop_awaiting(connection)
        self._release_share(connection)
        connection.close()

    def _release_share(self, connection: socket.socket) -> None:
        self._share_of.pop(connection).connections -= 1

    def _stop_awaiting(self, connection: socket.socket) -> None:
        self._awaiting_first_byte.pop(connection).cancel()
        self._loop.remove_reader(connection)


def _reply_to_plain_http(connection: socket.socket) -> None:
    """Answer plain HTTP with a 400, if the client is still connected."""
    try:
        connection.recv(65536)  # unread data would turn the close into a reset
        connection.send(_HTTPS_REQUIRED.wire(head_only=False, close=True))
    except OSError as error:
        logger.debug("the reply to plain HTTP could not be sent", error=str(error))
