"""Internal HTTP listener of a part, for monitoring, separate from the public port (ADR 0021).

It serves GET and HEAD only, one request per connection, and limits the memory that clients can use.
"""

import asyncio
import contextlib
import errno
import os
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final

import structlog

from codehub.host.file_lock import locked

logger = structlog.get_logger(__name__)

MAX_HEAD: Final = 8 << 10
MAX_READS: Final = 16
MAX_CONNECTIONS: Final = 32
HEAD_SECONDS: Final = 5.0
WRITE_SECONDS: Final = 10.0
BACKLOG: Final = 32


@dataclass(frozen=True)
class Response:
    """Response to a monitoring request."""

    status: int
    body: bytes
    content_type: str


Handler = Callable[[], Awaitable[Response]]


class ListenError(OSError):
    """Failure to bind the address of the listener."""


class _RequestError(Exception):
    """Invalid request."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


def listen(addresses: Sequence[str]) -> socket.socket:
    """Listen at the first of these addresses that is free.

    Each is `unix:/path`, which only this user can connect to, or `tcp:host:port`.
    """
    *preferred, last = addresses
    for address in preferred:
        try:
            return _listen(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise _cannot_listen(address, error) from error
    try:
        return _listen(last)
    except OSError as error:
        raise _cannot_listen(last, error) from error


def _listen(address: str) -> socket.socket:
    scheme, _, location = address.partition(":")
    return _listen_unix(Path(location)) if scheme == "unix" else listen_tcp(location)


def _cannot_listen(address: str, error: OSError) -> ListenError:
    return ListenError(f"cannot listen at {address} ({error.strerror}): correct INTERNAL_LISTEN")


def close_and_remove(listener: socket.socket) -> None:
    """Close the listener, and remove its socket file.

    A part that has dropped root privileges may not remove it. The next one does so, as root.
    """
    path = listener.getsockname() if listener.family == socket.AF_UNIX else None
    listener.close()
    if path:
        with contextlib.suppress(FileNotFoundError, PermissionError):
            Path(path).unlink()


@contextlib.asynccontextmanager
async def serve_paths(listener: socket.socket, handlers: Mapping[str, Handler]) -> AsyncIterator[None]:
    """Serve these paths while the body runs. The caller closes the listener."""
    server = _InternalServer(handlers)
    start = asyncio.start_unix_server if listener.family == socket.AF_UNIX else asyncio.start_server
    # A duplicate, as a server closes its socket; other processes may serve the same one.
    asyncio_server = await start(server.connected, sock=listener.dup(), limit=MAX_HEAD, backlog=BACKLOG)
    try:
        yield
    finally:
        asyncio_server.close()
        await server.end()


def get(address: str, path: str, timeout: float = 10.0) -> tuple[int, bytes]:
    """Send a GET request to an internal listener; return the status and the body."""
    with _connect(address, timeout) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: internal\r\n\r\n".encode("ascii"))
        response = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = response.partition(b"\r\n\r\n")
    try:
        return int(head.split(b" ", 2)[1]), body
    except (IndexError, ValueError) as error:
        raise ConnectionError(f"no answer at {address}") from error


def _connect(address: str, timeout: float) -> socket.socket:
    scheme, _, location = address.partition(":")
    if scheme == "tcp":
        host, _, port = location.rpartition(":")
        return socket.create_connection((host.strip("[]"), int(port)), timeout)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        connection.connect(location)
    except OSError:
        connection.close()
        raise
    return connection


@contextlib.asynccontextmanager
async def listen_and_serve(addresses: Sequence[str], handlers: Mapping[str, Handler]) -> AsyncIterator[None]:
    """Listen at one of the addresses, and serve these paths while the body runs."""
    listener = listen(addresses)
    try:
        async with serve_paths(listener, handlers):
            yield
    finally:
        close_and_remove(listener)


class _InternalServer:
    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers
        self._open: set[asyncio.Task[None]] = set()

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def end(self) -> None:
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError):
                await self._exchange(reader, writer)
        finally:
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method = "GET"
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                method, path = _request_line(await reader.readuntil(b"\r\n\r\n"))
            response = await self._respond(path)
        except asyncio.LimitOverrunError:
            response = _plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        except TimeoutError:
            response = _plain(HTTPStatus.REQUEST_TIMEOUT)
        except _RequestError as error:
            response = _plain(error.status)
        writer.write(_serialize(response, head_only=method == "HEAD"))
        async with asyncio.timeout(WRITE_SECONDS):
            await writer.drain()
            writer.write_eof()
            for _ in range(MAX_READS):  # unread bytes would reset the connection and lose the response
                if not await reader.read(MAX_HEAD):
                    return

    async def _respond(self, path: str) -> Response:
        handler = self._handlers.get(path)
        if handler is None:
            raise _RequestError(HTTPStatus.NOT_FOUND)
        try:
            return await handler()
        except Exception:
            logger.exception("an internal request failed", path=path)
            return _plain(HTTPStatus.INTERNAL_SERVER_ERROR)


def _request_line(head: bytes) -> tuple[str, str]:
    try:
        method, target, version = head.partition(b"\r\n")[0].decode("ascii").split(" ")
    except ValueError as error:
        raise _RequestError(HTTPStatus.BAD_REQUEST) from error
    if version not in ("HTTP/1.1", "HTTP/1.0") or not target.startswith("/"):
        raise _RequestError(HTTPStatus.BAD_REQUEST)
    if method not in ("GET", "HEAD"):
        raise _RequestError(HTTPStatus.METHOD_NOT_ALLOWED)
    return method, target.partition("?")[0]


def _plain(status: HTTPStatus) -> Response:
    return Response(status, f"{status.phrase}\n".encode(), "text/plain")


def _serialize(response: Response, *, head_only: bool) -> bytes:
    status = HTTPStatus(response.status)
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {response.content_type}\r\n"
        f"Content-Length: {len(response.body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    ).encode("ascii")
    return head if head_only else head + response.body


def _listen_unix(path: Path) -> socket.socket:
    path.parent.mkdir(parents=True, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with locked(path.parent):  # else a socket that is bound but not listening yet would look stale
            _remove_stale(path)
            listener.bind(str(path))
            path.chmod(0o600)
            listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _remove_stale(path: Path) -> None:
    """Remove the socket of a dead process, or raise OSError if something else is there."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def listen_tcp(location: str, backlog: int = BACKLOG) -> socket.socket:
    """Listen at `host:port`; `[::]:port` accepts IPv4 as well."""
    host, _, port = location.rpartition(":")
    family, _, _, _, address = socket.getaddrinfo(
        host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    is_ipv6 = family == socket.AF_INET6
    listener = socket.create_server(address, family=family, backlog=backlog, dualstack_ipv6=is_ipv6)
    listener.setblocking(False)
    return listener
