"""The door of a workspace's network: who makes its sockets, and how many do at a time."""

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
    """Whoever goes in waits until the gate is opened."""

    gate: int = -1

    def enter(self) -> None:
        os.read(self.gate, 1)


@dataclass
class Rig:
    door: PortBroker
    path: Path
    selector: selectors.BaseSelector
    opener: int

    def knock(self, stack: ExitStack) -> socket.socket:
        client = stack.enter_context(socket.socket(socket.AF_UNIX))
        client.settimeout(PATIENCE)
        client.connect(str(self.path))
        return client

    def answer_all(self) -> int:
        """How many were answered before the door let the rest wait."""
        answered = 0
        while self.selector.select(0):
            self.door.answer()
            answered += 1
        return answered

    def reap(self) -> None:
        for child in list(self.door._children):
            os.waitpid(child, 0)
            self.door.child_ended(child)


@pytest.fixture
def rig() -> Iterator[Rig]:
    directory = short_temp_dir()
    gate, opener = os.pipe()
    null = [os.open(os.devnull, os.O_RDONLY) for _ in range(2)]
    with selectors.DefaultSelector() as selector:
        namespaces = SlowNamespaces(null[0], null[1], True, gate)
        door = PortBroker(directory / "net.sock", namespaces, selector)
        yield Rig(door, directory / "net.sock", selector, opener)
        door.close()
        door.close()
    os.write(opener, bytes(64))  # nobody is left waiting, whatever the test did
    for end in (gate, opener):
        os.close(end)
    assert not list(directory.iterdir())
    directory.rmdir()


def test_at_most_eight_children_make_sockets_at_a_time(rig: Rig) -> None:
    with ExitStack() as stack:
        clients = [rig.knock(stack) for _ in range(20)]
        assert rig.answer_all() == 8
        os.write(rig.opener, bytes(len(clients)))  # all who wait go on, and all who come
        rig.reap()
        assert rig.answer_all() == 8
        rig.reap()
        assert rig.answer_all() == 4
        rig.reap()
        for client in clients:
            _, handed_out, *_ = socket.recv_fds(client, 1, 2)
            made = [stack.enter_context(socket.socket(fileno=each)) for each in handed_out]
            assert [each.family for each in made] == [socket.AF_INET, socket.AF_INET6][: len(made)]
            assert made


def test_who_cannot_go_in_harms_only_who_asked(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Namespaces) -> None:
        raise OSError("no way in")

    monkeypatch.setattr(SlowNamespaces, "enter", refuse)
    with ExitStack() as stack:
        client = rig.knock(stack)
        assert rig.answer_all() == 1
        rig.reap()
        assert client.recv(1) == b""
        rig.knock(stack).close()
        assert rig.answer_all() == 1
        rig.reap()


def test_a_machine_that_forks_no_more_is_survived(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(os, "fork", refuse)
    with ExitStack() as stack:
        client = rig.knock(stack)
        assert rig.answer_all() == 1
        assert client.recv(1) == b""
