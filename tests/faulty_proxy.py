"""Proxy in front of an HTTP service that breaks chosen requests."""

import contextlib
import http.client
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import urlsplit


class Fault(Enum):
    """What the proxy does to a request."""

    ERROR = "answers 500"
    SLOW_DOWN = "answers 503 SlowDown"
    HANG = "hangs"
    CLOSE = "closes halfway"
    FLIP = "flips a bit"
    TRUNCATE = "truncates"
    SLOW = "is slow"
    UNABLE = "answers 501"


REFUSALS = {
    Fault.ERROR: (500, "InternalError"),
    Fault.SLOW_DOWN: (503, "SlowDown"),
    Fault.UNABLE: (501, "NotImplemented"),
}


@dataclass(frozen=True)
class Rule:
    """Fault of the requests with this method whose target contains all of these words."""

    fault: Fault
    method: str
    words: tuple[str, ...]

    def matches(self, method: str, target: str) -> bool:
        return method == self.method and all(word in target for word in self.words)


class FaultyProxy:
    """Relay of every request, except those that a rule breaks."""

    def __init__(self, target: str) -> None:
        self.target = urlsplit(target).netloc
        self.seen: list[tuple[str, str]] = []
        self.delay = 0.2
        """Seconds that a slow response takes."""
        self._rules: dict[str, Rule] = {}
        self.released = threading.Event()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    @classmethod
    @contextlib.contextmanager
    def in_front_of(cls, target: str) -> Iterator[Self]:
        proxy = cls(target)
        thread = threading.Thread(target=proxy._server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield proxy
        finally:
            proxy.released.set()
            proxy._server.shutdown()
            proxy._server.server_close()
            thread.join()

    def break_requests(self, name: str, fault: Fault, method: str, *words: str) -> None:
        """Break the matching requests until `heal(name)`."""
        self._rules[name] = Rule(fault, method, words)

    def heal(self, name: str) -> None:
        self._rules.pop(name, None)

    def fault_of(self, method: str, target: str) -> Fault | None:
        self.seen.append((method, target))
        return next((rule.fault for rule in list(self._rules.values()) if rule.matches(method, target)), None)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that have given up, which the faults cause."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    owner: FaultyProxy

    def _pass(self) -> None:
        fault = self.owner.fault_of(self.command, self.path)
        if fault is Fault.HANG:
            self.owner.released.wait()
        if fault is Fault.SLOW:
            self.owner.released.wait(self.owner.delay)
        body = self.rfile.read(
            int(self.headers.get("Content-Length", 0)) // (2 if fault is Fault.CLOSE else 1)
        )
        if fault is Fault.HANG or (fault is Fault.CLOSE and body):
            self.close_connection = True
            return
        if fault in REFUSALS:
            self._refuse(fault)
            return
        status, headers, answer = self._forward(_flipped(body) if fault is Fault.FLIP else body)
        if fault is Fault.FLIP and not body:
            answer = _flipped(answer)
        if fault is Fault.TRUNCATE:
            answer = answer[: len(answer) // 2]
        self._answer(status, headers, answer, cut=fault is Fault.CLOSE)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass  # noqa: N815 - names of the standard library

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self.owner.target, timeout=60)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], answer: bytes, *, cut: bool) -> None:
        self.send_response_only(status)
        for name, value in headers:
            length = name.lower() == "content-length" and self.command != "HEAD"
            if name.lower() not in ("transfer-encoding", "connection"):
                self.send_header(name, str(len(answer)) if length else value)
        self.end_headers()
        self.wfile.write(answer[: len(answer) // 2] if cut else answer)
        self.close_connection = self.close_connection or cut

    def _refuse(self, fault: Fault) -> None:
        status, code = REFUSALS[fault]
        words = f"<Error><Code>{code}</Code><Message>planted by a test</Message></Error>".encode()
        self._answer(status, [("Content-Length", "0"), ("Content-Type", "application/xml")], words, cut=False)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - name of the standard library
        """Log nothing."""


def _flipped(content: bytes) -> bytes:
    changed = bytearray(content)
    if changed:
        changed[len(changed) // 2] ^= 1
    return bytes(changed)
