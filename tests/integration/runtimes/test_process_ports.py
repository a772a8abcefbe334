"""The port broker: what is reached through it, and by which processes."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from codehub.host.full_sockets import FullSockets
from codehub.host.port_sockets import connect_through
from codehub.host.processes import descendants
from codehub.runtimes.exec_request import CommandRefused, ExecRequest
from tests.integration.runtimes.conftest import RuntimeFixture, only_programs
from tests.integration.runtimes.network_peers import from_inside, listening, open_files
from tests.integration.runtimes.test_process_reduced_isolation import LIFECYCLE, run_as_stranger
from tests.reachability import connect_from_host
from tests.waiting import eventually, until

APP = """
import socket, sys
address, port = sys.argv[1], int(sys.argv[2])
server = socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
while True:
    with server.accept()[0] as connection:
        connection.sendall(address.encode())
"""


async def start_app(fixture: RuntimeFixture, workspace_id: str, address: str, port: int) -> None:
    command = f"/usr/bin/python3 -c '{APP}' {address} {port}"
    await fixture.inside(workspace_id, f"setsid {command} > /dev/null 2>&1 < /dev/null &")


async def answer_of(fixture: RuntimeFixture, workspace_id: str, port: int) -> str:
    """Return what an app sends to a client of the port broker, or the name of the error."""
    try:
        with await connect_through(
            str(fixture.directory(workspace_id).port_broker_socket), port, FullSockets()
        ) as connection:
            return (await asyncio.get_running_loop().sock_recv(connection, 100)).decode()
    except OSError as error:
        return type(error).__name__


async def expect_answer(fixture: RuntimeFixture, workspace_id: str, port: int, expected: str) -> None:
    await eventually(
        lambda: answer_of(fixture, workspace_id, port),
        f"{expected!r} on port {port}",
        lambda answer: answer == expected,
    )


def keeper_of(fixture: RuntimeFixture, workspace_id: str) -> int:
    state = fixture.directory(workspace_id).read_state()
    assert state is not None
    return state.keeper.pid


@pytest.mark.usefixtures("own_network")
async def test_an_app_on_either_loopback_address_is_reached_and_no_other(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    await fixture.started("w2")
    await start_app(fixture, "w1", "127.0.0.1", 3000)
    await start_app(fixture, "w1", "::1", 3001)
    await expect_answer(fixture, "w1", 3000, "127.0.0.1")
    await expect_answer(fixture, "w1", 3001, "::1")
    assert await answer_of(fixture, "w1", 3002) == "ConnectionRefusedError"
    assert await answer_of(fixture, "w2", 3000) == "ConnectionRefusedError"


@pytest.mark.usefixtures("own_network")
async def test_what_listens_on_the_host_alone_is_not_reached(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    with listening("0.0.0.0:0") as everywhere, listening("127.0.0.1:0") as on_loopback:
        for name in (everywhere, on_loopback):
            assert connect_from_host(name) == {name: True}
            assert await answer_of(fixture, "w1", int(name.rpartition(":")[2])) == "ConnectionRefusedError"


@pytest.mark.usefixtures("own_network")
async def test_only_codehub_reaches_the_port_broker_and_nothing_of_it_is_inside(
    fixture: RuntimeFixture,
) -> None:
    await fixture.started("w1")
    await fixture.started("w2")
    sockets = [str(fixture.directory(name).port_broker_socket) for name in ("w1", "w2")]
    assert set(connect_from_host(*sockets).values()) == {True}
    for path in sockets:
        assert Path(path).stat().st_mode & 0o077 == 0
        assert Path(path).parent.stat().st_mode & 0o077 == 0
    assert True not in (await from_inside(fixture, "w1", *sockets, "/run/codehub/net.sock")).values()
    assert await fixture.inside("w1", "ls /run/codehub") == "ide.sock\n"
    assert await fixture.inside("w1", "ls -l /proc/[0-9]*/fd 2>/dev/null | grep -E 'net:|user:'") == ""
    for process in descendants(keeper_of(fixture, "w1")):
        assert not [name for name in open_files(process.pid) if name.startswith(("net:", "user:"))]


@contextmanager
def silent_clients(path: str, count: int) -> Iterator[None]:
    connections = [socket.socket(socket.AF_UNIX) for _ in range(count)]
    for connection in connections:
        connection.connect(path)
    yield
    for connection in connections:
        connection.close()


@pytest.mark.usefixtures("own_network")
async def test_many_clients_of_the_port_broker_do_no_harm(fixture: RuntimeFixture) -> None:
    """Some send and receive nothing. The others are served, and the keeper is as before."""
    await fixture.started("w1")
    await start_app(fixture, "w1", "127.0.0.1", 3000)
    await expect_answer(fixture, "w1", 3000, "127.0.0.1")
    keeper = keeper_of(fixture, "w1")
    before = open_files(keeper), len(descendants(keeper))
    with silent_clients(str(fixture.directory("w1").port_broker_socket), 100):
        answers = await asyncio.gather(*(answer_of(fixture, "w1", 3000) for _ in range(200)))
    assert set(answers) == {"127.0.0.1"}
    files, children = before
    await until(lambda: {*open_files(keeper)} <= {*files}, "the keeper to close the rest")
    await until(lambda: len(descendants(keeper)) <= children, "the keeper's children to end")
    await fixture.until("w1", lambda fact: fact.ready)


@pytest.mark.usefixtures("own_network")
async def test_the_port_broker_and_the_network_end_with_the_workspace(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    await start_app(fixture, "w1", "127.0.0.1", 3000)
    await expect_answer(fixture, "w1", 3000, "127.0.0.1")
    state = fixture.directory("w1").read_state()
    assert state is not None and state.child is not None
    network = os.readlink(f"/proc/{state.child.pid}/ns/net")
    assert network in open_files(state.keeper.pid)
    await fixture.runtime.stop("w1")
    assert not fixture.directory("w1").port_broker_socket.exists()
    assert not state.keeper.is_alive()
    assert await answer_of(fixture, "w1", 3000) == "FileNotFoundError"
    await fixture.started("w1")
    assert await answer_of(fixture, "w1", 3000) == "ConnectionRefusedError"


@pytest.mark.usefixtures("own_network")
async def test_sockets_of_an_older_codehub_are_adopted_and_then_removed(
    fixture: RuntimeFixture,
) -> None:
    """They were in a directory that everybody can enter if there is no sandbox."""
    await fixture.started("w1")
    await start_app(fixture, "w1", "127.0.0.1", 3000)
    await expect_answer(fixture, "w1", 3000, "127.0.0.1")
    directory = fixture.directory("w1")
    older = directory.socket.rename(directory.path / "ide.sock")
    directory.port_broker_socket.rename(directory.path / "ports.sock")
    fixture.runtime.commands.broker_socket("w1").unlink()
    directory.port_broker_socket.parent.rmdir()
    with pytest.raises(CommandRefused, match="older version"):
        await fixture.runtime.commands.start_command("w1", ExecRequest("e1", ["true"]))
    assert (await fixture.runtime.status("w1")).upstream == f"unix:{directory.socket}"
    assert older.exists(), "the gateway may still use it"
    await fixture.until("w1", lambda fact: fact.ready)
    assert not older.exists()
    assert await answer_of(fixture, "w1", 3000) == "127.0.0.1"
    await fixture.runtime.stop("w1")
    await fixture.started("w1")
    assert not (directory.path / "ports.sock").exists()
    assert await answer_of(fixture, "w1", 3000) == "ConnectionRefusedError"


async def test_in_the_hosts_network_there_is_no_port_broker(
    fixture: RuntimeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would give access to the host's loopback."""
    path = os.environ["PATH"]
    only_programs(fixture, monkeypatch, "bwrap", "setpriv")
    assert (await fixture.runtime.barriers()).slirp is None
    monkeypatch.setenv("PATH", path)
    fixture.directory("w1").port_broker_socket.parent.mkdir(parents=True)
    fixture.directory("w1").port_broker_socket.touch()  # of an earlier container that had one
    await fixture.started("w1")
    assert not fixture.directory("w1").port_broker_socket.exists()
    assert await answer_of(fixture, "w1", 22) == "FileNotFoundError"


CONNECT_TO_PORTS = """
    import socket
    for port in (3000, 3001):
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(str(root / "w1" / "up" / "net.sock"))
            made = [socket.socket(fileno=each) for each in socket.recv_fds(asking, 1, 2)[1]]
        try:
            made[0].connect(("127.0.0.1", port))
            print(made[0].recv(100).decode())
        except ConnectionRefusedError:
            print("refused")
    await runtime.delete("w1")
"""


@pytest.mark.usefixtures("own_network")
def test_without_root_there_is_a_port_broker_as_well(fixture: RuntimeFixture) -> None:
    lifecycle = LIFECYCLE.replace('\n    await runtime.delete("w1")\n', CONNECT_TO_PORTS)
    assert lifecycle != LIFECYCLE
    command = f"/usr/bin/python3 -c '{APP}' 127.0.0.1 3000"
    listens = "until (: < /dev/tcp/127.0.0.1/3000) 2>&-; do :; done"
    script = f"setsid {command} > /dev/null 2>&1 < /dev/null & {listens}"
    assert run_as_stranger(fixture, script=script, lifecycle=lifecycle).split() == [
        "sandbox", "ready", "127.0.0.1", "refused", "False",
    ]  # fmt: skip
