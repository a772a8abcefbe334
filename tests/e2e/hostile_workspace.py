"""The program of a hostile workspace.

It uses only the standard library, because it runs as `python3 -c`.

It answers with floods, writes endless output, and fills its /tmp repeatedly.
"""

import contextlib
import os
import pathlib
import socketserver
import sys
import threading

BLOB = 64 << 10
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
FLOODS = {
    b"/tiny-chunks": (CHUNKED, b"1\r\nx\r\n" * (BLOB // 6)),
    b"/empty-frames": (SWITCH, b"\x82\x00" * (BLOB // 2)),
}


class RequestHandler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        path = self.rfile.readline().split(b" ")[1]
        while self.rfile.readline() not in (b"\r\n", b""):
            pass
        if path in FLOODS:
            head, repeated = FLOODS[path]
            self.wfile.write(head)
            while True:
                self.wfile.write(repeated)
        elif path == b"/sink":
            self.wfile.write(SWITCH)
            while self.rfile.read(BLOB):
                pass
        else:
            page = b"<title>hostile</title>"
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(page), page))


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

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


def main(path: str) -> None:
    for work in (write_endless_output, fill_tmp_repeatedly):
        threading.Thread(target=work, daemon=True).start()
    Server(path, RequestHandler).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
