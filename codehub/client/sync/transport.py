"""HTTP connections to one server that block. The twin of `codehub.client.aio.transport`."""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from codehub.client.answers import Answer
from codehub.client.errors import TimedOut, UnexpectedAnswer
from codehub.client.http_errors import mapped_errors, timeouts
from codehub.client.requests import CONNECT_SECONDS, MOST_ANSWER_BYTES, Request, Server
from codehub.client.transport_settings import base_headers, ssl_context, target

if TYPE_CHECKING:
    from codehub.client.sync.websocket import WebSocket


@dataclass(frozen=True)
class StreamedAnswer:
    """Response whose body comes in pieces."""

    status: int
    headers: dict[str, str]
    pieces: Iterator[bytes]


class Transport:
    """Connections to one server. Redirects are never followed, so that the token stays there."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ssl: ssl.SSLContext = ssl_context(server)
        self._http = httpx.Client(
            headers=base_headers(server), follow_redirects=False, verify=self._ssl, timeout=CONNECT_SECONDS
        )

    def close(self) -> None:
        self._http.close()

    def send(self, request: Request, body: Iterator[bytes] | None = None) -> Answer:
        """Send a request, and return its whole answer, whatever its status."""
        with self.stream(request, body) as streamed:
            return Answer(streamed.status, streamed.headers, self._whole(streamed, request))

    @contextlib.contextmanager
    def stream(
        self,
        request: Request,
        body: Iterator[bytes] | None = None,
        cancellation: "Cancellation | None" = None,
    ) -> Iterator[StreamedAnswer]:
        """Send a request, and yield its answer while its body comes."""
        made = self._http.build_request(
            request.method, target(self._server, request), params=dict(request.query),
            headers=dict(request.headers), json=request.json,
            content=request.content if body is None else body, timeout=timeouts(request.seconds),
        )  # fmt: skip
        with mapped_errors(self._server):
            response = self._http.send(made, stream=True)
        try:
            headers = {name.lower(): value for name, value in response.headers.items()}
            with (cancellation or Cancellation()).watching(response):
                yield StreamedAnswer(response.status_code, headers, self._pieces(response))
        finally:
            response.close()

    def _pieces(self, response: httpx.Response) -> Iterator[bytes]:
        with mapped_errors(self._server, in_stream=True):
            yield from response.iter_bytes()

    def _whole(self, streamed: StreamedAnswer, request: Request) -> bytes:
        deadline = time.monotonic() + request.seconds
        body = bytearray()
        for piece in streamed.pieces:
            body += piece
            if len(body) > MOST_ANSWER_BYTES:
                raise UnexpectedAnswer("The server's answer is too long.", streamed.status)
            if time.monotonic() > deadline:
                raise TimedOut(f"{self._server.url} did not end its answer in time.", may_have_happened=True)
        return bytes(body)

    def open_websocket(self, request: Request) -> "WebSocket":
        """Open a WebSocket; raise what the server answers if it refuses."""
        from codehub.client.sync import websocket  # websockets takes as long to load as all else

        return websocket.open_websocket(self._server, request, self._ssl)


class Cancellation:
    """What ends streams that other threads read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._responses: list[httpx.Response] = []
        self.is_cancelled = False

    @contextlib.contextmanager
    def watching(self, response: httpx.Response) -> Iterator[None]:
        """End this response with the others."""
        with self._lock:
            self._responses.append(response)
            if self.is_cancelled:
                _end(response)
        try:
            yield
        finally:
            with self._lock:
                self._responses.remove(response)

    def cancel(self) -> None:
        with self._lock:
            self.is_cancelled = True
            for response in self._responses:
                _end(response)


def _end(response: httpx.Response) -> None:
    """Shut the connection down, which wakes the thread that reads from it. Closing it would not."""
    stream = response.extensions.get("network_stream")
    connection = None if stream is None else stream.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
