"""The program of a hostile workspace.

It uses only the standard library, because it runs as `python3 -c`. The test passes the responses.

It answers with floods, writes endless output, and fills its /tmp repeatedly.
"""

import ast
import base64
import contextlib
import os
import pathlib
import socketserver
import sys
import threading
import zlib

BLOB = 64 << 10
PAGE = b"HTTP/1.1 200 OK\r\nContent-Length: 22\r\n\r\n<title>hostile</title>"

Responses = dict[bytes, tuple[bytes, bytes]]
"""By path, what is sent once, and what is then repeated without end."""


def pack(responses: Responses) -> str:
    """Return the responses as a short argument of this program."""
    return base64.b64encode(zlib.compress(repr(responses).encode())).decode()


class RequestHandler(socketserver.StreamRequestHandler):
    responses: Responses

    def handle(self) -> None:
        while line := self.rfile.readline():
            method, path, *_ = line.split(b" ")
            while self.rfile.readline() not in (b"\r\n", b""):
                pass
            once, repeated = self.responses.get(path, (PAGE, b""))
            if method == b"GET":
                self.wfile.write(once)
                while repeated:
                    self.wfile.write(repeated)
            if method != b"GET" or path == b"/frames":
                while self.rfile.read(BLOB):
                    pass


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """Ignore clients that disconnect."""


def write_endless_output() -> None:
    while True:
        os.write(1, b"y\n" * 4096)


def fill_tmp_repeatedly() -> None:
    path = pathlib.Path("/tmp/full")
    while True:
        with contextlib.suppress(OSError), path.open("wb") as file:
            while True:
                file.write(b"x" * BLOB)
        path.unlink()


def main(path: str, packed: str) -> None:
    RequestHandler.responses = ast.literal_eval(zlib.decompress(base64.b64decode(packed)).decode())
    for work in (write_endless_output, fill_tmp_repeatedly):
        threading.Thread(target=work, daemon=True).start()
    Server(path, RequestHandler).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[3])
