"""`ports/{port}/connect` on a whole system, through the gateway and a workspace's own network."""

import contextlib
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from codehub.asgi.server import MAX_WEBSOCKET_MESSAGE
from tests.integration.access.conftest import Workspace
from tests.integration.access.test_commands_system import bearer, make_token, revoke_tokens
from tests.services import free_port
from tests.waiting import PATIENCE, wait_for

APP = """
import socket, sys, threading
kind, port = sys.argv[1], int(sys.argv[2])
def serve(client):
    with client:
        if kind == "greet":
            client.sendall(b"hello")
        elif kind == "flood":
            while True:
                client.sendall(bytes(65536))
        elif kind == "silent":
            threading.Event().wait()
        elif kind == "count":
            total = 0
            while data := client.recv(65536):
                total += len(data)
            client.sendall(b"%d" % total)
        elif kind == "reset":
            client.recv(1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\\1\\0\\0\\0\\0\\0\\0\\0")
        else:
            while data := client.recv(65536):
                client.sendall(data)
server = socket.create_server(("127.0.0.1", port))
print("listening", flush=True)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""
OWN = pytest.mark.skipif(shutil.which("slirp4netns") is None, reason="apt-get install slirp4netns")
pytestmark = OWN


def start_app(workspace: Workspace, kind: str, port: int) -> None:
    exec_id = workspace.start(["/usr/bin/python3", "-c", APP, kind, str(port)])
    with workspace.api.stream(
        "GET", f"{workspace.url}/execs/{exec_id}/output", params={"follow": True}
    ) as output:
        assert next(output.iter_raw()) == b"listening\n"


@dataclass
class Ports:
    """Connections to ports of a workspace as its owner."""

    workspace: Workspace

    def url(self, port: int | str, query: str = "") -> str:
        return f"ws://localhost:{self.workspace.system.port}{self.workspace.url}/ports/{port}/connect{query}"

    @property
    def cookies(self) -> dict[str, str]:
        cookies = self.workspace.api.cookies.items()
        return {"Cookie": "; ".join(f"{name}={value}" for name, value in cookies)}

    def connect(self, port: int | str, query: str = "", **headers: str) -> ClientConnection:
        return connect(
            self.url(port, query), additional_headers=headers or self.cookies, open_timeout=PATIENCE
        )

    def refusal(self, port: int | str, query: str = "", **headers: str) -> tuple[int, str]:
        """Return the status and the code of the refusal."""
        with pytest.raises(InvalidStatus) as refused:
            self.connect(port, query, **headers)
        response = refused.value.response
        return response.status_code, (response.body or b"").decode().partition('"code":"')[2].split('"')[0]


@pytest.fixture
def ports(workspace: Workspace) -> Ports:
    return Ports(workspace)


def received_until_end(client: ClientConnection) -> bytes:
    """Return the bytes until the empty message."""
    received = b""
    while data := client.recv(PATIENCE):
        assert isinstance(data, bytes)
        received += data
    return received


def code_of(client: ClientConnection) -> int:
    """Read until the other side closes, and return its code."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            client.recv(PATIENCE)
    assert client.close_code is not None
    return client.close_code


def test_bytes_pass_both_ways_and_each_direction_ends_by_itself(ports: Ports) -> None:
    start_app(ports.workspace, "echo", 3000)
    start_app(ports.workspace, "count", 3001)
    start_app(ports.workspace, "greet", 3002)
    content = os.urandom(5 << 20)
    with ports.connect(3000) as client:

        def send() -> None:
            for at in range(0, len(content), MAX_WEBSOCKET_MESSAGE):
                client.send(content[at : at + MAX_WEBSOCKET_MESSAGE])
            client.send(b"")

        sender = threading.Thread(target=send)
        sender.start()
        assert received_until_end(client) == content
        sender.join(PATIENCE)
        assert code_of(client) == 1000
    with ports.connect(3001) as client:
        client.send(b"12345")
        client.send(b"")
        assert received_until_end(client) == b"5", "the app answers after the end of its input"
        assert code_of(client) == 1000
    with ports.connect(3002) as client:
        assert received_until_end(client) == b"hello", "the app ends first"
        client.send(b"")
        assert code_of(client) == 1000
    with ports.connect(3001) as client:
        client.send(b"x" * 1000)  # what is sent before a close arrives, as the others have shown


def test_what_cannot_be_connected_to_is_refused_before_the_upgrade(ports: Ports) -> None:
    for port in ("0", "65536", "abc", "080", "-1", "9" * 40, "3000%20"):
        assert ports.refusal(port) == (404, "NOT_FOUND"), port
    assert ports.refusal(3999) == (502, "UPSTREAM_UNAVAILABLE")
    with socket.create_server(("127.0.0.1", free_port())) as on_the_host:
        refusal = ports.refusal(on_the_host.getsockname()[1])
        assert refusal == (502, "UPSTREAM_UNAVAILABLE"), "a port of the host"
    assert ports.refusal(3000, "?wake=maybe") == (422, "VALIDATION_ERROR")
    foreign = ports.cookies | {"Origin": "http://evil.example"}
    assert ports.refusal(3999, **foreign) == (403, "FORBIDDEN")
    assert ports.refusal(3999, **bearer(make_token(ports.workspace, "read"))) == (403, "FORBIDDEN")
    revoke_tokens(ports.workspace)
    api, path = ports.workspace.api, f"{ports.workspace.url}/ports/3999/connect"
    plain = api.get(path)
    assert (plain.status_code, plain.json()["error"]["code"]) == (426, "UPGRADE_REQUIRED")
    assert plain.headers["upgrade"] == "websocket"
    assert api.head(path).status_code == 426
    assert api.get(f"{ports.workspace.url}/ports/0/connect").status_code == 404
    assert api.get(f"{ports.workspace.url}/execs/{ports.workspace.id}/attach").status_code == 426


def test_a_port_of_a_workspace_in_standby_wakes_it_if_asked_to(ports: Ports) -> None:
    ports.workspace.wish("STANDBY")
    wait_for(lambda: ports.workspace.is_in("STANDBY"), "the workspace to stop")
    assert ports.refusal(3000) == (409, "INVALID_STATE")
    assert ports.refusal(3000, "?wake=true&wake_timeout_seconds=55") == (502, "UPSTREAM_UNAVAILABLE")
    assert ports.workspace.is_in("RUNNING")


def test_only_input_is_a_use(ports: Ports) -> None:
    start_app(ports.workspace, "echo", 3000)

    def last_access() -> str:
        return str(ports.workspace.api.get(ports.workspace.url).json()["last_access_at"])

    before = last_access()
    with ports.connect(3000) as client:
        client.ping().wait(PATIENCE)
        assert last_access() == before, "being open is no use"
        client.send(b"x")
        assert client.recv(PATIENCE) == b"x"
        assert last_access() > before


@pytest.mark.parametrize(
    ("sent", "codes"),
    [
        ("text", (1003,)),
        (bytes(MAX_WEBSOCKET_MESSAGE + 1), (1009,)),
        (bytes(20 << 20), (1006, 1009)),  # the client still sends when the connection is closed
    ],
)
def test_hostile_messages_close_the_connection(
    ports: Ports, sent: str | bytes, codes: tuple[int, ...]
) -> None:
    start_app(ports.workspace, "silent", 3000)
    with ports.connect(3000) as client:
        with contextlib.suppress(ConnectionClosed):
            client.send(sent)
        assert code_of(client) in codes


def test_input_behind_its_end_and_a_reset_close_the_connection(ports: Ports) -> None:
    start_app(ports.workspace, "silent", 3000)
    start_app(ports.workspace, "reset", 3001)
    with ports.connect(3000) as client:
        client.send(b"")
        client.send(b"more")
        assert code_of(client) == 1002
    with ports.connect(3001) as client:
        client.send(b"x")
        assert code_of(client) == 1011


def memory_of_access(workspace: Workspace) -> int:
    """Return the resident memory of the access part in bytes."""
    with open(f"/proc/{workspace.system.pids()['access']}/status") as file:
        (line,) = [line for line in file if line.startswith("VmRSS:")]
    return int(line.split()[1]) << 10


def test_each_side_is_as_fast_as_the_other_takes_it(ports: Ports) -> None:
    """An app that floods a client that reads nothing, and a client that floods an app that does so."""
    start_app(ports.workspace, "flood", 3000)
    start_app(ports.workspace, "silent", 3001)
    before = memory_of_access(ports.workspace)
    descriptors = Path("/proc", str(ports.workspace.system.pids()["access"]), "fd")
    opened = len(list(descriptors.iterdir()))
    address = ("localhost", ports.workspace.system.port)
    with contextlib.ExitStack() as stack:
        for port in (3000, 3001):
            for _ in range(8):
                raw = stack.enter_context(socket.create_connection(address))
                upgrade(raw, ports, port)
                raw.settimeout(0.5)
                with contextlib.suppress(TimeoutError):
                    while port == 3001:
                        raw.sendall(FRAME)
        assert ports.workspace.api.get(ports.workspace.url).status_code == 200
        assert len(list(descriptors.iterdir())) >= opened + 24
        assert memory_of_access(ports.workspace) - before < 16 * (2 << 20)
    wait_for(lambda: len(list(descriptors.iterdir())) < opened + 16, "the connections to end")


FRAME = b"\x82\xff" + (32768).to_bytes(8, "big") + bytes(4) + bytes(32768)


def upgrade(raw: socket.socket, ports: Ports, port: int) -> None:
    """Open a WebSocket, and read no more than its head."""
    fields = {
        "Host": f"localhost:{ports.workspace.system.port}",
        **ports.cookies,
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    lines = [f"GET {ports.workspace.url}/ports/{port}/connect HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    raw.sendall("\r\n".join([*lines, "", ""]).encode())
    raw.settimeout(PATIENCE)
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += raw.recv(1)
    assert head.startswith(b"HTTP/1.1 101 "), head


@contextlib.contextmanager
def timed() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 1


def test_a_connection_ends_with_its_token_and_with_its_workspace(ports: Ports) -> None:
    start_app(ports.workspace, "silent", 3000)
    with ports.connect(3000, **bearer(make_token(ports.workspace, "use"))) as client:
        revoke_tokens(ports.workspace)
        with timed():
            assert code_of(client) in (1006, 1008)
    with ports.connect(3000) as client:
        ports.workspace.wish("STANDBY")
        code = code_of(client)
    assert code in (1001, 1006, 1011), "the app ends, or the workspace is gone"


def test_another_user_reaches_no_port(ports: Ports) -> None:
    api = ports.workspace.api
    made = api.post("/api/v1/users", json={"username": "eve", "password": "a good password"})
    assert made.status_code == 201, made.text
    with contextlib.closing(ports.workspace.system.client("eve", "a good password")) as eve:
        theirs = {"Cookie": "; ".join(f"{name}={value}" for name, value in eve.cookies.items())}
        assert ports.refusal(3000, **theirs) == (403, "FORBIDDEN")
