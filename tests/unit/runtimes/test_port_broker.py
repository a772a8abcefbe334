"""The port broker: it hands out sockets, with a limited number of children at a time."""

import os
import selectors
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from codehub.runtimes.process.network import Namespaces
from codehub.runtimes.process.port_broker import PortBroker
from tests.services import short_temp_dir
from tests.waiting import PATIENCE


@dataclass(frozen=True)
class SlowNamespaces(Namespaces):
    """Namespaces that a process enters only once the gate has been opened."""

    gate: int = -1

    def enter(self) -> None:
        os.read(self.gate, 1)


@dataclass
class BrokerFixture:
    broker: PortBroker
    path: Path
    selector: selectors.BaseSelector
    release_gate: int

    def connect(self, stack: ExitStack) -> socket.socket:
        client = stack.enter_context(socket.socket(socket.AF_UNIX))
        client.settimeout(PATIENCE)
        client.connect(str(self.path))
        return client

    def accept_all(self) -> int:
        """Accept clients until the broker pauses; return how many."""
        accepted = 0
        while self.selector.select(0):
            self.broker.accept()
            accepted += 1
        return accepted

    def reap(self) -> None:
        for child in list(self.broker._children):
            os.waitpid(child, 0)
            self.broker.child_ended(child)


@pytest.fixture
def fixture() -> Iterator[BrokerFixture]:
    directory = short_temp_dir()
    gate, release_gate = os.pipe()
    null = [os.open(os.devnull, os.O_RDONLY) for _ in range(2)]
    with selectors.DefaultSelector() as selector:
        namespaces = SlowNamespaces(null[0], null[1], True, gate)
        broker = PortBroker({directory / "net.sock": 0o600}, namespaces, selector)
        yield BrokerFixture(broker, directory / "net.sock", selector, release_gate)
        broker.close()
        broker.close()
    os.write(release_gate, bytes(64))  # no child stays behind, whatever the test did
    for end in (gate, release_gate):
        os.close(end)
    assert not list(directory.iterdir())
    directory.rmdir()


def test_at_most_eight_children_create_sockets_at_a_time(fixture: BrokerFixture) -> None:
    with ExitStack() as stack:
        clients = [fixture.connect(stack) for _ in range(20)]
        assert fixture.accept_all() == 8
        os.write(fixture.release_gate, bytes(len(clients)))  # for the waiting children and those to come
        fixture.reap()
        assert fixture.accept_all() == 8
        fixture.reap()
        assert fixture.accept_all() == 4
        fixture.reap()
        for client in clients:
            _, handed_out, *_ = socket.recv_fds(client, 1, 2)
            created = [stack.enter_context(socket.socket(fileno=each)) for each in handed_out]
            assert [each.family for each in created] == [socket.AF_INET, socket.AF_INET6][: len(created)]
            assert created


def test_a_failure_to_enter_the_namespaces_affects_one_client(
    fixture: BrokerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Namespaces) -> None:
        raise OSError("no permission")

    monkeypatch.setattr(SlowNamespaces, "enter", refuse)
    with ExitStack() as stack:
        client = fixture.connect(stack)
        assert fixture.accept_all() == 1
        fixture.reap()
        assert client.recv(1) == b""
        fixture.connect(stack).close()
        assert fixture.accept_all() == 1
        fixture.reap()


def test_a_failed_fork_affects_one_client(fixture: BrokerFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(os, "fork", refuse)
    with ExitStack() as stack:
        client = fixture.connect(stack)
        assert fixture.accept_all() == 1
        assert client.recv(1) == b""
