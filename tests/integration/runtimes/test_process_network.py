"""The network of a process workspace: what its uplink reaches, and what it does not."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from codehub.host.processes import ProcessId, descendants, processes_with_argument
from codehub.runtimes.base import RuntimeFailure
from codehub.runtimes.egress import Egress
from codehub.runtimes.process import forkserver_client
from codehub.runtimes.process.network import HELPER_UID_OFFSET
from tests.integration.runtimes.conftest import RuntimeFixture, only_programs, tun_device
from tests.integration.runtimes.network_peers import (
    PORT,
    Neighbour,
    from_inside,
    listening,
    machine_that_answers,
    name_server,
    neighbour,
    python_inside,
    uid_of,
)
from tests.reachability import connect_from_host, own_addresses
from tests.waiting import PATIENCE, eventually, until

pytestmark = pytest.mark.usefixtures("own_network")


@pytest.fixture(scope="module")
def outside() -> Iterator[Neighbour]:
    with neighbour() as there:
        yield there


@pytest.mark.parametrize("mode", ["600", "666"])
def test_root_has_an_uplink_whatever_the_mode_of_the_device(mode: str) -> None:
    uplink = {"program": shutil.which("slirp4netns"), "uid": HELPER_UID_OFFSET, "rules": []}
    check = {"argv": ["/bin/true"], "env": {}, "groups": {}, "uplink": uplink}
    machine = ["/usr/bin/unshare", "-m", "/bin/sh", "-c", f'{tun_device(mode)} && exec "$@"', "-"]
    done = subprocess.run(
        [*machine, sys.executable, "-m", "codehub.runtimes.process.isolation_check_program"],
        input=json.dumps(check).encode(),
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout)["error"] == ""


def helper_of(fixture: RuntimeFixture, workspace_id: str) -> ProcessId:
    state = fixture.directory(workspace_id).read_state()
    assert state is not None
    (helper,) = [
        process
        for process in descendants(state.keeper.pid)
        if Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(b"/usr/bin/slirp4netns")
    ]
    return helper


async def test_the_internet_is_reached_and_private_networks_are_not(
    fixture: RuntimeFixture, outside: Neighbour
) -> None:
    await fixture.started("w1")
    public, denied = f"{outside.public}:{PORT}", [f"{host}:{PORT}" for host in outside.not_for_workspaces]
    assert set(connect_from_host(public, *denied).values()) == {True}
    answers = await from_inside(fixture, "w1", public, *denied)
    assert answers.pop(public) is True
    assert set(answers.values()) == {"[Errno 13] Permission denied"}


async def test_nothing_of_this_machine_is_reached_but_codehubs_port(fixture: RuntimeFixture) -> None:
    with listening("0.0.0.0:0") as port_of_codehub, listening("0.0.0.0:0") as other:
        codehub_port, other_port = (name.rpartition(":")[2] for name in (port_of_codehub, other))
        fixture.runtime = fixture.another_runtime(Egress(int(codehub_port)))
        addresses = [*own_addresses(), "127.0.0.1"]
        await fixture.started("w1")
        host = addresses[0]
        names = [f"{address}:{other_port}" for address in addresses]
        reached = connect_from_host(*names)
        # Concurrent tests create and remove networks.
        still = [f"{address}:{other_port}" for address in (*own_addresses(), "127.0.0.1")]
        assert {reached[name] for name in still if name in reached} == {True}
        # slirp4netns can forward these to the host's loopback and name server.
        names += [f"198.19.255.{last}:{other_port}" for last in (2, 3)]
        # An address whose network a concurrent test has removed drops all packets.
        answers = await from_inside(fixture, "w1", f"{host}:{codehub_port}", *names, dropped=names)
        assert answers.pop(f"{host}:{codehub_port}") is True
        assert True not in answers.values()


async def test_what_is_allowed_is_reached(fixture: RuntimeFixture, outside: Neighbour) -> None:
    fixture.runtime = fixture.another_runtime(Egress(8080, allowed=(f"{outside.ten}/32",)))
    await fixture.started("w1")
    answers = await from_inside(fixture, "w1", f"{outside.ten}:{PORT}", f"{outside.private}:{PORT}")
    assert answers == {
        f"{outside.ten}:{PORT}": True,
        f"{outside.private}:{PORT}": "[Errno 13] Permission denied",
    }


async def test_an_allowed_range_does_not_open_this_machines_addresses_in_it(
    fixture: RuntimeFixture, outside: Neighbour
) -> None:
    fixture.runtime = fixture.another_runtime(Egress(8080, allowed=("10.0.0.0/8",)))
    await fixture.started("w1")
    with listening(f"{outside.host_ten}:0") as of_the_host:
        assert connect_from_host(of_the_host) == {of_the_host: True}
        answers = await from_inside(fixture, "w1", f"{outside.ten}:{PORT}", of_the_host)
    assert answers == {f"{outside.ten}:{PORT}": True, of_the_host: "[Errno 13] Permission denied"}


async def test_listeners_and_abstract_sockets_are_private_to_each_workspace(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    await fixture.started("w2")
    listen = """
import os, socket, time
listeners = socket.create_server(("", 7777)), socket.socket(socket.AF_UNIX)
listeners[1].bind(chr(0) + "abstract")
listeners[1].listen()
if os.fork() == 0:
    os.setsid()
    os.dup2(os.open("/dev/null", os.O_RDWR), 1)
    os.dup2(1, 2)
    time.sleep(600)
"""
    await python_inside(fixture, "w2", listen)
    names = ("127.0.0.1:7777", "198.19.255.100:7777", "@abstract")

    async def from_the_other() -> dict[str, bool | str]:
        return await from_inside(fixture, "w2", *names)

    await eventually(from_the_other, "its listeners", lambda answers: set(answers.values()) == {True})
    with listening(f"@host-{fixture.data_dir.name}") as of_the_host:
        assert connect_from_host(of_the_host) == {of_the_host: True}
        answers = await from_inside(fixture, "w1", *names, of_the_host)
    assert True not in answers.values()


async def test_names_are_resolved_by_the_hosts_name_servers(
    fixture: RuntimeFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a name server and /etc/resolv.conf of this test, on loopback, as systemd has it."""
    resolv_conf = tmp_path / "resolv.conf"
    mounted = f'mount --bind {resolv_conf} /etc/resolv.conf && exec "$@"'
    program = forkserver_client.python_program
    monkeypatch.setattr(
        forkserver_client,
        "python_program",
        lambda module: ["unshare", "-m", "sh", "-c", mounted, "sh", *program(module)],
    )
    monkeypatch.setattr("codehub.runtimes.process.runtime.FORK_SERVER", forkserver_client.ForkServerClient())
    with name_server("203.0.113.9") as address:
        resolv_conf.write_text(f"nameserver {address}\n")
        await fixture.started("w1")
        assert "203.0.113.9 " in await fixture.inside("w1", "getent ahostsv4 somewhere.example")
        assert "198.19.255.3" in await fixture.inside("w1", "cat /etc/resolv.conf")


async def test_multicast_and_broadcast_stay_inside(fixture: RuntimeFixture, outside: Neighbour) -> None:
    """A socket that is bound to the interface bypasses the routing rules.

    The helper takes packets in their order: once it has made the connection, it has handled what
    came before.
    """
    await fixture.started("w1")
    group, here = "239.255.77.77", own_addresses()[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("", 0))
        membership = socket.inet_aton(group) + socket.inet_aton(here)
        receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        port = receiver.getsockname()[1]
        script = f"""
import socket
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"tap0")
sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
for address in ("{group}", "255.255.255.255"):
    print(sender.sendto(b"inside", (address, {port})))
socket.create_connection(("{outside.public}", {PORT}))
"""
        assert await python_inside(fixture, "w1", script) == "6\n6\n"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(here))
            sender.sendto(b"outside", (group, port))
        receiver.settimeout(PATIENCE)
        assert receiver.recv(9) == b"outside", "what was sent before, from inside, did not arrive"


async def test_multicast_gets_no_answer_from_denied_addresses(
    fixture: RuntimeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a network namespace of this test.

    Datagrams may be lost, above all on a loaded machine: each is sent until the server has it. The
    server answers in the order of arrival, so the last answer comes after the one to the multicast.
    """
    with machine_that_answers() as machine:
        program = forkserver_client.python_program
        monkeypatch.setattr(
            forkserver_client, "python_program", lambda module: machine.inside(program(module))
        )
        monkeypatch.setattr(
            "codehub.runtimes.process.runtime.FORK_SERVER", forkserver_client.ForkServerClient()
        )
        await fixture.started("w1")
        script = f"""
import socket, struct, time
by_multicast, allowed = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
interface = struct.pack("=4s4si", bytes(4), bytes(4), socket.if_nametoindex("tap0"))
by_multicast.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, interface)
by_multicast.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 8)
allowed.settimeout(0.2)
deadline = time.monotonic() + {PATIENCE}

def ask(message, *received):
    while time.monotonic() < deadline:
        if b"by multicast" in received:
            by_multicast.sendto(b"by multicast", ("224.0.0.1", {machine.port}))
        allowed.sendto(message, ("{machine.public}", {machine.port}))
        try:
            answer = allowed.recv(60000).split(b",")
        except TimeoutError:
            continue
        if {{message, *received}} <= {{*answer}}:
            return
    raise SystemExit(f"no answer to {{message}}")

ask(b"first")  # the helper learns the way back to us
ask(b"second", b"by multicast")
ask(b"third")
by_multicast.setblocking(False)
print(by_multicast.recvfrom(100))
"""
        assert "BlockingIOError" in await python_inside(fixture, "w1", script)
        await fixture.runtime.delete("w1")


async def test_a_socket_that_bypasses_the_rules_reaches_nothing(
    fixture: RuntimeFixture, outside: Neighbour
) -> None:
    """A socket that is bound to the interface bypasses the rules, and slirp4netns has no route."""
    with listening("0.0.0.0:0") as of_the_host:
        port = int(of_the_host.rpartition(":")[2])
        denied = [(host, PORT) for host in outside.not_for_workspaces]
        denied += [(host, port) for host in (*own_addresses(), "127.0.0.1", "198.19.255.2", "198.19.255.3")]
        await fixture.started("w1")
        script = f"""
import concurrent.futures, json, socket
def is_reached(address):
    with socket.socket() as asking:
        # The others do not answer. A longer timeout could only help to find a reachable one.
        asking.settimeout({PATIENCE} if address[0] == "{outside.public}" else 2)
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"tap0")
        return asking.connect_ex(address) == 0
addresses = {[(outside.public, PORT), *denied]}
with concurrent.futures.ThreadPoolExecutor(len(addresses)) as pool:
    reached = list(pool.map(is_reached, addresses))
print(json.dumps([host for (host, _), is_so in zip(addresses, reached) if is_so]))
"""
        assert json.loads(await python_inside(fixture, "w1", script)) == [outside.public]


async def test_a_workspace_cannot_change_its_network(fixture: RuntimeFixture, outside: Neighbour) -> None:
    await fixture.started("w1")
    take_over = """
import ctypes, fcntl, os
owner = fcntl.ioctl(os.open("/proc/self/ns/net", os.O_RDONLY), 0xb701)
libc = ctypes.CDLL(None, use_errno=True)
print(libc.setns(owner, 0x10000000), os.strerror(ctypes.get_errno()))
"""
    assert await python_inside(fixture, "w1", take_over) == "-1 Operation not permitted\n"
    changes = "ip rule del pref 1; ip rule flush; ip route add 10.0.0.0/8 dev tap0; ip link set tap0 down"
    assert (await fixture.inside("w1", changes)).count("Operation not permitted") == 4
    await fixture.inside("w1", "unshare -rn ip rule flush")
    denied, public = f"{outside.ten}:{PORT}", f"{outside.public}:{PORT}"
    answers = await from_inside(fixture, "w1", denied, public)
    assert answers[public] is True and answers[denied] is not True


async def test_the_helper_has_no_rights_and_ends_with_the_workspace(fixture: RuntimeFixture) -> None:
    spec = await fixture.started("w1")
    helper = helper_of(fixture, "w1")
    assert spec.uid is not None and uid_of(helper.pid) == spec.uid + HELPER_UID_OFFSET
    status = Path(f"/proc/{helper.pid}/status").read_text()
    assert "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status
    assert sorted(path.name for path in Path(f"/proc/{helper.pid}/root").iterdir()) == ["etc", "run"]
    await fixture.runtime.stop("w1")
    assert not helper.is_alive()


async def test_the_helper_ends_with_a_killed_keeper(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    helper, state = helper_of(fixture, "w1"), fixture.directory("w1").read_state()
    assert state is not None
    state.keeper.send(signal.SIGKILL)
    await until(lambda: not helper.is_alive(), "the helper to end")
    await fixture.started("w1")


async def test_the_death_of_the_helper_is_logged_and_the_ide_runs_on(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    helper_of(fixture, "w1").send(signal.SIGKILL)

    async def log() -> str:
        return await fixture.runtime.logs("w1", 1000)

    await eventually(log, "the loss in the log", lambda text: "the network is gone" in text)
    await fixture.until("w1", lambda fact: fact.ready)
    await fixture.runtime.stop("w1")
    assert not (await fixture.runtime.status("w1")).running


async def test_without_a_working_helper_a_workspace_is_in_the_hosts_network(
    fixture: RuntimeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = only_programs(fixture, monkeypatch, "bwrap", "setpriv")
    (programs / "slirp4netns").write_text("#!/bin/sh\necho no tap device >&2\nexit 1\n")
    (programs / "slirp4netns").chmod(0o755)
    barriers = await fixture.runtime.barriers()
    assert barriers.slirp is None and "no tap device" in barriers.why_no_network
    with listening("127.0.0.1:0") as of_the_host:
        await fixture.started("w1")
        assert await from_inside(fixture, "w1", of_the_host) == {of_the_host: True}


async def test_a_network_that_can_no_longer_be_created_fails_the_start(
    fixture: RuntimeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alternative would be the host's network."""
    barriers = replace(await fixture.runtime.barriers(), slirp="/bin/false")
    monkeypatch.setattr(fixture.runtime, "_barriers", barriers)
    with pytest.raises(RuntimeFailure, match="has no uplink"):
        await fixture.runtime.start(fixture.spec("w1"))
    assert not (await fixture.runtime.status("w1")).running
    directory = str(fixture.directory("w1").path)
    await until(lambda: not processes_with_argument(directory), "the keeper to end")
