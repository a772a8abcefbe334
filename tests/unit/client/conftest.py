"""A server of the tests' own, that answers what a test wants."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.waiting import PATIENCE


@dataclass
class FakeServer:
    """HTTP server whose answers are those of a function. It records what it was sent."""

    answer: Callable[["Handler"], None] = lambda handler: handler.json({})
    requests: list["Handler"] = field(default_factory=list)
    url: str = ""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: FakeServer
    timeout = PATIENCE

    def handle_any(self) -> None:
        self.fake.requests.append(self)
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.fake.answer(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self.handle_any
        raise AttributeError(name)

    def json(self, value: Any, status: int = 200, **headers: str) -> None:
        self.raw(json.dumps(value).encode(), status, "application/json", **headers)

    def error(self, status: int, code: str, **headers: str) -> None:
        self.json({"error": {"code": code, "message": f"This is {code}."}}, status, **headers)

    def raw(self, body: bytes, status: int = 200, kind: str = "text/html", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def break_off(self) -> None:
        """Close the connection as a dying server does."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: object) -> None:
        pass


def serve() -> Iterator[FakeServer]:
    fake = FakeServer()
    handler = type("OneHandler", (Handler,), {"fake": fake})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield fake
    server.shutdown()
    server.server_close()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    yield from serve()


@pytest.fixture
def other_server() -> Iterator[FakeServer]:
    yield from serve()
