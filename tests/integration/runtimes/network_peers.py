"""Peers for network tests: other machines, servers, and probes from inside a workspace."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.integration.runtimes.conftest import RuntimeFixture
from tests.reachability import Answers, connect_command, python_command

PORT = 8099
_BACKLOG = 4096

_SERVER = f"""
import socketserver
class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.sendall(b"from outside")
socketserver.TCPServer.allow_reuse_address = True
server = socketserver.ThreadingTCPServer(("0.0.0.0", {PORT}), Handler)
print("listening", flush=True)
server.serve_forever()
"""

_ECHO = """
import socket
echo, received = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), []
echo.bind(("0.0.0.0", 0))
print(echo.getsockname()[1], flush=True)
while True:
    message, sender = echo.recvfrom(100)
    received.append(message)
    echo.sendto(b",".join(received), sender)
"""


@dataclass(frozen=True)
class Machine:
    """A network namespace with a private and a public address.

    Its server answers every datagram with all messages that it has received.
    """

    name: str
    public: str
    port: int

    def inside(self, command: list[str]) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self.name}", *command]


@contextmanager
def machine_that_answers() -> Iterator[Machine]:
    # Not an address that `neighbour` gives to the host: workspaces may not send to those.
    name, public = f"chout{secrets.token_hex(3)}", "198.51.100.200"
    _ip(f"netns add {name}")
    try:
        _ip(f"-n {name} link set lo up")
        _ip(f"-n {name} link add lan type veth peer name end")
        for address in ("10.213.88.1/24", f"{public}/32"):
            _ip(f"-n {name} addr add {address} dev lan")
        for link in ("lan", "end"):
            _ip(f"-n {name} link set {link} up")
        _ip(f"-n {name} route add default dev lan src 10.213.88.1")
        enter = ["nsenter", f"--net=/run/netns/{name}", sys.executable, "-S", "-c", _ECHO]
        with subprocess.Popen(enter, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                yield Machine(name, public, int(server.stdout.readline()))
            finally:
                server.kill()
    finally:
        _ip(f"netns del {name}")


@dataclass(frozen=True)
class Neighbour:
    """Addresses of another machine on networks of the host. It listens on `PORT` of each."""

    public: str
    ten: str
    private: str
    shared: str
    link_local: str
    host_ten: str
    """The host's address on the network of `ten`."""

    @property
    def not_for_workspaces(self) -> list[str]:
        return [self.ten, self.private, self.shared, self.link_local]


@contextmanager
def neighbour() -> Iterator[Neighbour]:
    name = f"chout{secrets.token_hex(3)}"
    networks = ("203.0.113", "10.213.77", "192.168.213", "100.99.7", "169.254.213")
    with _block_of_four() as block:
        hosts, addresses = ([f"{network}.{block + last}" for network in networks] for last in (1, 2))
        _ip(f"netns add {name}")
        try:
            _ip(f"link add {name} type veth peer name peer netns {name}")
            for host, address in zip(hosts, addresses, strict=True):
                _ip(f"addr add {host}/30 dev {name}")
                _ip(f"-n {name} addr add {address}/30 dev peer")
            _ip(f"link set {name} up")
            _ip(f"-n {name} link set peer up")
            with _server(name):
                yield Neighbour(*addresses, host_ten=hosts[1])
        finally:
            _ip(f"netns del {name}")


@contextmanager
def _block_of_four() -> Iterator[int]:
    """Yield the last byte of four addresses that no other test process on this machine uses.

    A bound abstract socket is the lock: the kernel releases it when its process ends, however that
    ends.
    """
    with socket.socket(socket.AF_UNIX) as lock:
        yield next(block for block in range(4, 252, 4) if _takes(lock, f"codehub-test-addresses-{block}"))


def _takes(lock: socket.socket, name: str) -> bool:
    try:
        lock.bind(f"\0{name}")
    except OSError:
        return False
    return True


@contextmanager
def _server(name: str) -> Iterator[None]:
    command = ["ip", "netns", "exec", name, sys.executable, "-S", "-c", _SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None and server.stdout.readline()
            yield
        finally:
            server.kill()


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True)


@contextmanager
def listening(address: str) -> Iterator[str]:
    """Listen on the host, at `host:0`, `/path` or `@abstract`; yield the address.

    Connections are never accepted. Concurrent Docker tests give this machine over 128 addresses,
    and a test connects to each.
    """
    is_unix = address[0] in "/@"
    with socket.socket(socket.AF_UNIX if is_unix else socket.AF_INET) as server:
        server.bind(address.replace("@", "\0", 1) if is_unix else (address.rpartition(":")[0], 0))
        server.listen(_BACKLOG)
        yield address if is_unix else f"{address.rpartition(':')[0]}:{server.getsockname()[1]}"


@contextmanager
def name_server(answer: str) -> Iterator[str]:
    """Run a name server that answers every query with this address; yield its own address.

    Its loopback address belongs to this process alone: the port must be 53.
    """
    address = f"127.77.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, 53))
        server.settimeout(0.1)
        ended = threading.Event()
        record = b"\xc0\x0c\0\x01\0\x01\0\0\0\x05\0\x04" + socket.inet_aton(answer)

        def serve() -> None:
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    query, asker = server.recvfrom(512)
                    question = query[12 : query.index(b"\0", 12) + 5]
                    head = query[:2] + b"\x81\x80\0\x01\0\x01\0\0\0\0"
                    server.sendto(head + question + record, asker)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield address
        finally:
            ended.set()
            thread.join()


async def from_inside(
    fixture: RuntimeFixture, workspace_id: str, *names: str, dropped: Iterable[str] = ()
) -> Answers:
    """Return for each address True, or the error of the connection."""
    command = connect_command(*names, dropped=dropped)
    answers: Answers = json.loads(await fixture.inside(workspace_id, command))
    return answers


async def python_inside(fixture: RuntimeFixture, workspace_id: str, script: str) -> str:
    return await fixture.inside(workspace_id, python_command(script))


def uid_of(pid: int) -> int:
    return os.stat(f"/proc/{pid}").st_uid


def open_files(pid: int) -> list[str]:
    """Return what a process has open, without what it closes meanwhile."""
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found.append(os.readlink(file))
    return sorted(found)
