"""Isolation of a container: what it reaches and may use, and what reaches it."""

import ipaddress
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from codehub.runtimes.block_device import disk_of
from codehub.runtimes.egress import Egress
from codehub.runtimes.open_files import open_files
from tests.docker.conftest import TINY_IMAGE, RuntimeFixture
from tests.reachability import own_addresses
from tests.services import Services
from tests.waiting import wait_for

OUTSIDE = "198.51.100.2"
"""A public address for a workspace: reserved for documentation, and not private."""


def reaches(fixture: RuntimeFixture, workspace_id: str, host: str, port: int) -> bool:
    """Return whether it connects within a second. The firewall drops denied packets."""
    return fixture.engine.inside(workspace_id, f"nc -w 1 {host} {port} </dev/null").returncode == 0


def reached(fixture: RuntimeFixture, workspace_id: str, port: int, *hosts: str) -> list[str]:
    """Return the hosts that it connects to. All are tried at once."""
    attempts = [f"(nc -w 1 {host} {port} </dev/null && echo {host}) &" for host in hosts]
    return fixture.engine.inside(workspace_id, f"{' '.join(attempts)} wait").stdout.decode().split()


def connects(host: str, port: int, *through: str) -> bool:
    """Return whether a program of this machine connects, started by the command `through`."""
    command = [*through, "busybox", "nc", "-w", "1", host, str(port)]
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode == 0


@contextmanager
def listening(host: str) -> Iterator[int]:
    """Run a server that closes every connection; yield its port."""
    with socketserver.TCPServer((host, 0), socketserver.BaseRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def host_address(fixture: RuntimeFixture, workspace_id: str) -> str:
    form = "{{range .NetworkSettings.Networks}}{{.Gateway}}{{end}}"
    return fixture.engine.docker("inspect", "--format", form, f"codehub-ws-{workspace_id}")


def address(upstream: str | None) -> tuple[str, int]:
    host, _, port = (upstream or "").removeprefix("tcp:").partition(":")
    return host, int(port)


async def test_the_probe_itself_can_reach_something(fixture: RuntimeFixture) -> None:
    """Otherwise the tests below could pass because `nc` does not work."""
    host, port = address((await fixture.started("w1")).upstream)
    wait_for(lambda: reaches(fixture, "w1", host, port), "a connection")
    wait_for(lambda: reached(fixture, "w1", port, host) == [host], "a connection")


async def test_another_workspaces_ide_cannot_be_reached(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    other = await fixture.started("w2")
    assert not reaches(fixture, "w1", *address(other.upstream))


async def test_services_of_the_host_cannot_be_reached_by_any_of_its_addresses(
    fixture: RuntimeFixture,
) -> None:
    await fixture.started("w1")
    with listening("0.0.0.0") as port:
        assert reached(fixture, "w1", port, host_address(fixture, "w1"), *own_addresses(), "127.0.0.1") == []


async def test_the_sockets_of_postgresql_and_redis_are_not_there(
    fixture: RuntimeFixture, services: Services
) -> None:
    await fixture.started("w1")
    sockets = f"test -e {services.data_dir} || test -e /run/codehub || test -e /var/run/postgresql"
    assert fixture.engine.inside("w1", sockets).returncode != 0


async def test_codehubs_public_port_can_be_reached(fixture: RuntimeFixture) -> None:
    with listening("0.0.0.0") as port:
        runtime = fixture.other_runtime(egress=Egress(port))
        try:
            await runtime.start(fixture.spec("w1"))
            await fixture.ready("w1")
            wait_for(lambda: reaches(fixture, "w1", host_address(fixture, "w1"), port), "a connection")
        finally:
            await runtime.close()


@contextmanager
def neighbour(host: str) -> Iterator[int]:
    """Run a server on another machine in a network of the host; yield its port."""
    gateway = str(ipaddress.IPv4Address(host) - 1)
    commands = (
        "ip netns add codehub-test",
        "ip link add chtest0 type veth peer name chtest1 netns codehub-test",
        f"ip addr add {gateway}/30 dev chtest0",
        "ip link set chtest0 up",
        f"ip -n codehub-test addr add {host}/30 dev chtest1",
        "ip -n codehub-test link set chtest1 up",
        f"ip -n codehub-test route add default via {gateway}",
        "iptables -I FORWARD -o chtest0 -j ACCEPT",
        "iptables -I FORWARD -i chtest0 -j ACCEPT",
    )
    undo = (
        "iptables -D FORWARD -o chtest0 -j ACCEPT",
        "iptables -D FORWARD -i chtest0 -j ACCEPT",
        "ip link del chtest0",
        "ip netns del codehub-test",
    )
    for command in undo:  # what a killed run has left
        subprocess.run(command.split(), stderr=subprocess.DEVNULL, check=False)
    for command in commands:
        subprocess.run(command.split(), check=True)
    server = subprocess.Popen(
        ["ip", "netns", "exec", "codehub-test", "busybox", "httpd", "-f", "-p", "8080", "-h", "/media"]
    )
    try:
        wait_for(lambda: connects(host, 8080), "the neighbour to listen")
        yield 8080
    finally:
        server.kill()
        server.wait()
        for command in undo:
            subprocess.run(command.split(), check=True)


@pytest.mark.parametrize(
    ("host", "expected"), [(OUTSIDE, True), ("169.254.169.254", False), ("192.168.214.2", False)]
)
async def test_the_internet_may_be_reached_and_private_and_metadata_addresses_not(
    fixture: RuntimeFixture, host: str, expected: bool
) -> None:
    await fixture.started("w1")
    with neighbour(host) as port:
        if expected:
            wait_for(lambda: reaches(fixture, "w1", host, port), "a connection")
        else:
            assert not reaches(fixture, "w1", host, port)


async def test_an_allowed_address_can_be_reached(fixture: RuntimeFixture) -> None:
    runtime = fixture.other_runtime(egress=Egress(8080, allowed=("192.168.214.2/32",)))
    try:
        await runtime.start(fixture.spec("w1"))
        await fixture.ready("w1")
        with neighbour("192.168.214.2") as port:
            wait_for(lambda: reaches(fixture, "w1", "192.168.214.2", port), "a connection")
    finally:
        await runtime.close()


async def test_an_allowed_range_opens_neither_this_machine_nor_other_workspaces(
    fixture: RuntimeFixture,
) -> None:
    runtime = fixture.other_runtime(egress=Egress(8080, allowed=("10.0.0.0/8",)))
    try:
        for name in ("w1", "w2"):
            await runtime.start(fixture.spec(name))
        other = await fixture.ready("w2")
        with neighbour("10.213.78.2") as port, listening("0.0.0.0") as own_port:
            wait_for(lambda: reaches(fixture, "w1", "10.213.78.2", port), "a connection")
            hosts = (host_address(fixture, "w1"), host_address(fixture, "w2"))
            assert reached(fixture, "w1", own_port, "10.213.78.1", *hosts) == []
        assert not reaches(fixture, "w1", *address(other.upstream))
    finally:
        await runtime.close()


async def test_an_address_of_this_machine_that_is_named_can_be_reached(fixture: RuntimeFixture) -> None:
    runtime = fixture.other_runtime(egress=Egress(8080, allowed=("10.213.78.1/32",)))
    try:
        await runtime.start(fixture.spec("w1"))
        await fixture.ready("w1")
        with neighbour("10.213.78.2"), listening("0.0.0.0") as own_port:
            wait_for(lambda: reaches(fixture, "w1", "10.213.78.1", own_port), "a connection")
            assert not reaches(fixture, "w1", host_address(fixture, "w1"), own_port)
    finally:
        await runtime.close()


async def test_another_machine_does_not_reach_a_workspace_where_this_one_forwards_everything(
    fixture: RuntimeFixture,
) -> None:
    ide = address((await fixture.started("w1")).upstream)
    assert Path("/proc/sys/net/ipv4/ip_forward").read_text() == "1\n"
    with neighbour(OUTSIDE) as port:
        wait_for(lambda: reaches(fixture, "w1", OUTSIDE, port), "a route in both directions")
        assert not connects(*ide, "ip", "netns", "exec", "codehub-test")
    wait_for(lambda: connects(*ide), "a connection")


async def test_on_this_machine_only_codehubs_users_reach_a_workspace(fixture: RuntimeFixture) -> None:
    gateway, stranger = 3_800_000, 3_800_001
    runtime = fixture.other_runtime(gateway_uid=gateway)
    try:
        await runtime.start(fixture.spec("w1"))
        ide = address((await fixture.ready("w1")).upstream)
        wait_for(lambda: connects(*ide), "a connection")
        wait_for(lambda: connects(*ide, *as_user(gateway)), "a connection")
        assert not connects(*ide, *as_user(stranger))
        with listening("127.0.0.1") as port:
            wait_for(lambda: connects("127.0.0.1", port, *as_user(stranger)), "a connection")
        await fixture.runtime.clean_up()
        assert not connects(*ide, *as_user(gateway))  # the runtime that ran last sets the rules
    finally:
        await runtime.close()


def as_user(uid: int) -> tuple[str, ...]:
    return ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups")


async def test_flushed_rules_are_restored_by_the_next_start(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    subprocess.run(["iptables", "-t", "mangle", "-F"], check=True)
    with listening("0.0.0.0") as port:
        wait_for(lambda: reaches(fixture, "w1", host_address(fixture, "w1"), port), "a connection")
        await fixture.started("w2")
        await fixture.started("w3")
        assert not reaches(fixture, "w1", host_address(fixture, "w1"), port)
    rules = subprocess.run(
        ["iptables", "-t", "mangle", "-S"], capture_output=True, text=True, check=True
    ).stdout
    assert [rules.count(f"-A {chain} ") for chain in ("PREROUTING", "FORWARD", "OUTPUT")] == [1, 1, 1]


async def test_a_container_sees_no_files_or_processes_of_the_host(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    await fixture.started("w2")
    paths = f"{fixture.homes}/w2 {fixture.engine.directory} /var/run/docker.sock /run/docker.sock"
    found = fixture.engine.inside("w1", f"ls -d {paths} 2>/dev/null")
    assert found.stdout == b""
    processes = fixture.engine.inside("w1", "ps").stdout.decode()
    assert "httpd" in processes
    assert "dockerd" not in processes


async def test_caps_are_really_applied(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    first_process = fixture.engine.docker("inspect", "--format", "{{.State.Pid}}", "codehub-ws-w1")
    limits = {name: cgroup_value(first_process, name) for name in ("memory", "pids", "cpu")}
    assert limits == {"memory": str(64 << 20), "pids": "64", "cpu": "50000"}


async def test_disk_bandwidth_and_open_files_are_really_bounded(fixture: RuntimeFixture) -> None:
    disk = disk_of(fixture.homes)
    if disk is None:
        pytest.skip("needs homes on a disk: set TMPDIR to a directory on one")
    await fixture.started("w1", image=replace(TINY_IMAGE, disk_bandwidth=50 << 20))
    first_process = fixture.engine.docker("inspect", "--format", "{{.State.Pid}}", "codehub-ws-w1")
    limit = cgroup_value(first_process, "blkio")
    assert limit.startswith(disk.number) and str(50 << 20) in limit
    assert fixture.engine.inside("w1", "ulimit -n").stdout.decode().strip() == str(open_files())


async def test_no_privilege_is_left_and_none_can_be_gained(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    status = fixture.engine.inside("w1", "cat /proc/1/status").stdout.decode()
    fields = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)
    assert all(int(fields[name], 16) == 0 for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb"))
    assert fields["NoNewPrivs"] == "1"
    assert fields["Uid"].split()[0] not in ("0", "1000")


async def test_a_fork_bomb_stops_at_the_limit_of_processes(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    done = fixture.engine.inside("w1", "for i in $(busybox seq 200); do sleep 5 & done")
    assert b"can't fork" in done.stderr
    assert (await fixture.ready("w1")).running


def cgroup_value(pid: str, controller: str) -> str:
    """Return the limit of a process's control group, in version 1 or 2."""
    names = {
        "memory": ("memory.limit_in_bytes", "memory.max"),
        "pids": ("pids.max", "pids.max"),
        "cpu": ("cpu.cfs_quota_us", "cpu.max"),
        "blkio": ("blkio.throttle.write_bps_device", "io.max"),
    }
    with open(f"/proc/{pid}/cgroup") as file:
        entries = [line.strip().split(":", 2) for line in file]
    for _, controllers, path in entries:
        if controller in controllers.split(","):
            with open(f"/sys/fs/cgroup/{controller}{path}/{names[controller][0]}") as file:
                return file.read().strip()
    unified = next(path for number, controllers, path in entries if number == "0" and not controllers)
    with open(f"/sys/fs/cgroup{unified}/{names[controller][1]}") as file:
        limit = file.read().strip()
        return limit if controller == "blkio" else limit.split()[0]
